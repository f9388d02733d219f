"""Children that crash, hang, eat memory and print too much, and what that costs: one call."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from foredraft.errors import (
    CapacityError,
    ChildDiedError,
    ChildError,
    ChildMemoryError,
    ChildOutputError,
    ChildTimeoutError,
    RateLimitError,
    RequestError,
)
from foredraft.isolation import pool as module
from foredraft.isolation.pool import ChildPool

AMPLE = 60.0
CRASHES = [(name, False) for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP")]
unix = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits")
linux = pytest.mark.skipif(sys.platform != "linux", reason="limits that hold, and /proc")


@pytest.fixture(scope="module")
def shared() -> Iterator[ChildPool]:
    with ChildPool(memory=400 << 20, output=1 << 20) as pool:
        yield pool


def call(pool: ChildPool, name: str, *args: object, seconds: float = AMPLE) -> Any:
    return pool.call(f"child_functions:{name}", *args, seconds=seconds)


def gone(pid: int) -> bool:
    """Whether a process ends within a while."""
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


def test_results_are_plain_values(shared: ChildPool) -> None:
    assert call(shared, "add", 1, 2) == 3
    assert call(shared, "values") == {
        "texts": ["é", "\ud800"],
        "bytes": b"\0\xff",
        "pair": (1, 2.5),
        "set": {3},
        "none": None,
        "big": 2**80,
    }


def test_a_child_is_kept_for_the_next_call(shared: ChildPool) -> None:
    assert call(shared, "process") == call(shared, "process") != os.getpid()


@unix
def test_a_crash_costs_one_call(shared: ChildPool) -> None:
    with pytest.raises(ChildDiedError, match="signal 11, SIGSEGV") as caught:
        call(shared, "crash")
    assert caught.value.last_words == "assertion failed: native code"
    assert not caught.value.transient
    assert call(shared, "add", 2, 2) == 4


def test_a_child_that_leaves_is_replaced(shared: ChildPool) -> None:
    with pytest.raises(ChildDiedError, match="exit status 3") as caught:
        call(shared, "leave", 3)
    assert not caught.value.transient
    assert call(shared, "add", 2, 3) == 5


@pytest.mark.parametrize("name", ["hang", "hang_with_the_lock"])
def test_a_child_that_hangs_is_killed(shared: ChildPool, name: str) -> None:
    call(shared, "process")
    with pytest.raises(ChildTimeoutError, match=r"longer than 0\.2 s"):
        call(shared, name, seconds=0.2)
    assert call(shared, "add", 3, 3) == 6


@linux
def test_what_counts_is_the_time_that_a_child_works(shared: ChildPool) -> None:
    """A busy machine, or a disk, may keep it waiting for much longer."""
    assert call(shared, "sleep", 1.0, seconds=0.3) == 1.0


@linux
@pytest.mark.parametrize(("name", "waited"), [("hang", True), ("hang_with_the_lock", False)])
def test_a_child_that_was_kept_waiting_is_told_from_one_that_worked(
    shared: ChildPool, name: str, waited: bool
) -> None:
    with pytest.raises(ChildTimeoutError) as caught:
        call(shared, name, seconds=0.3)
    assert caught.value.transient is waited


@unix
@pytest.mark.parametrize(("sent", "transient"), [("SIGKILL", True), ("SIGTERM", True), *CRASHES])
def test_a_child_that_somebody_killed_is_told_from_one_that_crashed(
    shared: ChildPool, sent: str, transient: bool
) -> None:
    with pytest.raises(ChildDiedError, match=sent) as caught:
        call(shared, "end_by", sent)
    assert caught.value.transient is transient


@linux
@pytest.mark.parametrize("name", ["eat_slowly", "eat_at_once", "eat_and_abort"])
def test_memory_is_bounded(shared: ChildPool, name: str) -> None:
    with pytest.raises(ChildMemoryError, match="memory"):
        call(shared, name)
    assert call(shared, "add", 4, 3) == 7


def test_a_result_is_bounded(shared: ChildPool) -> None:
    assert len(call(shared, "much", 1_000_000)) == 1_000_000
    with pytest.raises(ChildOutputError, match="1048"):
        call(shared, "much", 1 << 20)
    assert call(shared, "add", 4, 4) == 8


@unix
def test_what_is_printed_is_bounded_and_no_part_of_the_result(shared: ChildPool) -> None:
    with pytest.raises(ChildOutputError, match="output"):
        call(shared, "noise")
    assert call(shared, "add", 5, 4) == 9


def test_there_is_nothing_to_read(shared: ChildPool) -> None:
    assert call(shared, "read_input") == ""


def test_errors_of_ours_pass_through(shared: ChildPool) -> None:
    with pytest.raises(RequestError) as caught:
        call(shared, "refuse")
    assert type(caught.value) is RequestError
    assert (caught.value.message, caught.value.hint) == ("That cannot be done.", "Do something else.")
    with pytest.raises(RateLimitError, match="Not now") as later:
        call(shared, "refuse_for_now")
    assert later.value.retry_after == 2.5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fail", "KeyError: 'no such thing'"),
        ("strange", "Strange"),
        ("unpicklable", "lambda"),
        ("nothing_here", "nothing_here"),
    ],
)
def test_other_errors_are_told(shared: ChildPool, name: str, message: str) -> None:
    with pytest.raises(ChildError, match=message):
        call(shared, name)
    assert call(shared, "add", 5, 5) == 10


def test_a_module_that_is_not_there_is_told(shared: ChildPool) -> None:
    with pytest.raises(ChildError, match="ModuleNotFoundError"):
        shared.call("no_such_module:function", seconds=AMPLE)


@unix
def test_a_child_killed_between_calls_is_not_noticed(shared: ChildPool) -> None:
    for _ in range(3):
        pid = call(shared, "process")
        os.kill(pid, signal.SIGKILL)
        assert call(shared, "process") != pid


def test_callers_share_a_bounded_number_of_children() -> None:
    with ChildPool(size=2) as pool, ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(call, pool, "add", number, 1) for number in range(40)]
        pids = [threads.submit(call, pool, "process") for _ in range(20)]
        assert [future.result() for future in futures] == [number + 1 for number in range(40)]
        assert len({future.result() for future in pids}) <= 2


@unix
def test_a_crash_harms_no_other_call() -> None:
    with ChildPool(size=2) as pool, ThreadPoolExecutor(4) as threads:
        good = [threads.submit(call, pool, "add", number, 1) for number in range(12)]
        bad = [threads.submit(call, pool, "crash") for _ in range(4)]
        assert [future.result() for future in good] == [number + 1 for number in range(12)]
        assert all(isinstance(future.exception(), ChildDiedError) for future in bad)


def test_a_call_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.1)
    with ChildPool(size=1) as pool, ThreadPoolExecutor(1) as threads:
        call(pool, "process")
        busy = threads.submit(call, pool, "sleep", 1.0)
        time.sleep(0.3)
        with pytest.raises(CapacityError, match="busy"):
            call(pool, "process")
        assert busy.result() == 1.0


def test_a_closed_pool_takes_no_calls_and_leaves_no_child() -> None:
    pool = ChildPool()
    pid = call(pool, "process")
    pool.close()
    assert gone(pid)
    with pytest.raises(ChildError, match="closed"):
        call(pool, "process")
    pool.close()


def test_closing_ends_a_call() -> None:
    pool = ChildPool()
    call(pool, "process")
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(call, pool, "hang")
        time.sleep(0.3)
        pool.close()
        assert isinstance(hanging.exception(timeout=AMPLE), ChildError)


def test_a_pool_that_nobody_has_any_more_leaves_no_child() -> None:
    pool = ChildPool()
    pid = call(pool, "process")
    del pool
    gc.collect()
    assert gone(pid)


PROGRAM = """
import sys, time
from foredraft.isolation.pool import ChildPool
pool = ChildPool()
print(pool.call("child_functions:process", seconds=60), flush=True)
"""


def start(program: str) -> tuple[subprocess.Popen[str], int]:
    """A program that uses a pool, and its child's id."""
    command = [sys.executable, "-W", "error", "-c", program]
    path = os.pathsep.join(sys.path)
    parent = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def test_a_program_that_ends_leaves_no_child_and_no_warning() -> None:
    parent, child = start(PROGRAM)
    _, said = parent.communicate(timeout=AMPLE)
    assert (parent.returncode, said) == (0, "")
    assert gone(child)


@unix
@pytest.mark.parametrize("busy", ["", 'pool.call("child_functions:hang", seconds=1)'])
def test_a_child_ends_with_its_parent(busy: str) -> None:
    parent, child = start(PROGRAM + busy + "\ntime.sleep(100)")
    parent.kill()
    parent.communicate()
    assert gone(child)


@unix
def test_ctrl_c_is_for_the_parent(shared: ChildPool) -> None:
    pid = call(shared, "process")
    os.kill(pid, signal.SIGINT)
    assert call(shared, "process") == pid


@linux
def test_a_child_has_none_of_the_parents_sockets_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-secret")
    monkeypatch.setenv("HARMLESS", "yes")
    with socket.socket() as server, ChildPool() as pool:
        server.set_inheritable(True)
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert not [name for name in call(pool, "descriptors") if name.startswith("socket:")]
        environment = call(pool, "environment")
    assert "sk-secret" not in environment.values()
    assert environment["HARMLESS"] == "yes"


def test_a_python_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with ChildPool() as pool, pytest.raises(ChildError, match="nowhere/python"):
        call(pool, "process")


def test_no_room_for_a_temporary_file_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with ChildPool() as pool:
        for _ in range(3):  # each gives its place in the pool back
            with pytest.raises(ChildError, match=r"could not be started.*No space left"):
                call(pool, "process")


def test_a_child_that_never_begins_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_environment", lambda: {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"})
    with ChildPool() as pool, pytest.raises(ChildError, match="could not be started"):
        call(pool, "process")


def test_no_thread_is_left(shared: ChildPool) -> None:
    call(shared, "process")
    for _ in range(100):
        if not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]:
            return
        time.sleep(0.05)
    pytest.fail("a timer goes on")
