"""How many threads compute beside other processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import gguf_factory
from foredraft.backends.llamacpp import BACKEND, free_cores, loading
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.free_cores import WINDOW_S, CpuTimes, FreeCores, cpu_ticks
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.config import ModelOptions
from foredraft.types import Rows


class Machine:
    """Processors that the threads of a model and `busy` others share evenly; `shown`: share of the time that
    the system counts at all.
    """

    def __init__(self, processors: int, threads: int) -> None:
        self.processors, self.busy, self.shown = processors, 0.0, 1.0
        self.times = CpuTimes(100.0, 5000.0, 4000.0, 30.0)
        self.cores = FreeCores(threads, processors, lambda: self.times)

    def spend(self, seconds: float) -> None:
        """The threads chosen compute for so long."""
        own = self.cores.threads
        share = min(1.0, self.processors / (own + self.busy)) * seconds
        total = self.processors * seconds
        idle = total - share * (own + self.busy)
        self.times = CpuTimes(
            self.times.at + seconds,
            self.times.total + self.shown * total,
            self.times.idle + self.shown * idle,
            self.times.own + share * own,
        )

    def run(self, seconds: float) -> list[int]:
        """The number of threads after each forward of 10 ms."""
        chosen = []
        for _ in range(round(seconds / 0.01)):
            self.spend(0.01)
            chosen.append(self.cores.choose(self.times.at))
        return chosen


def test_alone_all_threads_compute() -> None:
    assert set(Machine(2, 2).run(5.0)) == {2}
    assert set(Machine(16, 8).run(5.0)) == {8}


@pytest.mark.parametrize(
    ("processors", "threads", "busy", "left"),
    [
        (2, 2, 1, 1),
        (2, 2, 2, 1),
        (2, 2, 4, 1),
        (8, 8, 1, 7),
        (8, 8, 4, 4),
        (8, 8, 20, 1),
        (16, 8, 4, 8),  # hyper-threads: there are processors for both
        (16, 8, 12, 5),
        (2, 1, 4, 1),
    ],
)
def test_threads_make_room_for_what_else_computes(
    processors: int, threads: int, busy: int, left: int
) -> None:
    machine = Machine(processors, threads)
    machine.run(1.0)
    machine.busy = busy
    assert machine.run(3.0)[-100:] == [left] * 100, "and then the number stays"
    machine.busy = 0
    assert machine.run(3.0)[-1] == threads


def test_one_window_is_enough_to_make_room_and_two_to_come_back() -> None:
    machine = Machine(2, 2)
    machine.run(1.0)
    machine.busy = 1
    assert machine.run(2 * WINDOW_S)[-1] == 1
    machine.busy = 0
    after = machine.run(1.0)
    assert 1.5 * WINDOW_S < 0.01 * after.count(1) <= 3 * WINDOW_S + 0.02


def test_a_pause_in_what_else_computes_is_not_its_end() -> None:
    machine = Machine(2, 2)
    machine.busy = 4
    machine.run(1.0)
    for _ in range(5):
        machine.busy = 0
        assert machine.run(WINDOW_S)[-1] == 1
        machine.busy = 4
        assert machine.run(2 * WINDOW_S)[-1] == 1


@pytest.mark.parametrize("busy", [0.1, 0.3, 0.4])
def test_what_needs_less_than_half_a_core_takes_no_thread(busy: float) -> None:
    machine = Machine(2, 2)
    machine.busy = busy
    assert set(machine.run(5.0)) == {2}


def test_a_request_after_a_pause_knows_what_went_on_in_it() -> None:
    machine = Machine(2, 2)
    machine.busy = 4
    at, total, idle, own = machine.times
    machine.times = CpuTimes(at + 60, total + 120, idle, own)
    assert machine.cores.choose(at + 60) == 1


@pytest.mark.parametrize("shown", [0.0, 0.3, 4.0])
def test_times_of_another_machine_are_ignored(shown: float) -> None:
    machine = Machine(2, 2)
    machine.shown, machine.busy = shown, 4
    assert set(machine.run(2.0)) == {2}


def test_without_times_the_number_is_fixed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert FreeCores(4, 4, lambda: None).choose(1e9) == 4
    monkeypatch.setattr(free_cores, "_STAT", tmp_path / "none")
    assert free_cores.free_cores(4).choose(1e9) == 4
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    assert free_cores.free_cores(4).choose(1e9) == 4


STAT = """cpu  100 20 30 400 50 0 7 8 3 0
cpu0 1 2 3 40 5 6 7 8 1 1
cpu1 10 0 0 100 0 0 0 0 0 0
cpu10 1000 1000 1000 1000 0 0 0 0 0 0
intr 18714372 0 0 0
ctxt 5
"""


def test_only_the_processors_that_may_be_used_count() -> None:
    assert cpu_ticks(STAT, {0}) == (72, 45)
    assert cpu_ticks(STAT, {1}) == (110, 100)
    assert cpu_ticks(STAT, {0, 1, 2}) == (182, 145)


# --- in a model ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf", ctx_train=1024)


def on_two_cores(
    path: Path, monkeypatch: pytest.MonkeyPatch, **options: object
) -> tuple[LlamaCppModel, Machine]:
    machine = Machine(2, 2)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("foredraft.backends.llamacpp.devices.has_accelerator", lambda: False)
    monkeypatch.setattr(loading, "physical_cores", lambda: 2)
    monkeypatch.setattr(loading, "free_cores", lambda most: machine.cores if most == 2 else None)
    monkeypatch.setattr("foredraft.backends.llamacpp.model.monotonic", lambda: machine.times.at)
    model = BACKEND.load(path, ModelOptions(gpu_layers=0, probe=False, **options))  # type: ignore[arg-type]
    assert isinstance(model, LlamaCppModel)
    return model, machine


def answer(model: LlamaCppModel, machine: Machine, busy: list[float]) -> tuple[list[bytes], list[int]]:
    """The bits of the logits of forwards beside so many others, and the threads that llama.cpp then had."""
    bits, threads = list[bytes](), list[int]()
    for others in busy:
        machine.busy = others
        for tokens in (tuple(range(3, 43)), (7,)):
            machine.spend(2 * WINDOW_S)
            rows = Rows(0, model.length(0), tokens, len(tokens))
            bits.append(model.forward([rows]).tobytes())
        threads.append(int(lib.llama_n_threads(model._context)))
        assert model.idle_threads == 2 - threads[-1]
    return bits, threads


def test_the_number_of_threads_changes_no_bit(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, machine = on_two_cores(tiny, monkeypatch)
    alone, threads = answer(model, machine, [0] * 16)
    assert threads == [2] * 16
    model.release(0)
    shared, threads = answer(model, machine, [0, 4, 4, 0] * 4)
    model.close()
    assert threads == [2, 1, 1, 2] * 4
    assert alone == shared


@pytest.mark.parametrize("options", [{"threads": 2}, {"kv_type": "f16"}], ids=str)
def test_a_number_of_the_user_or_one_that_shows_stays(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    model, machine = on_two_cores(tiny, monkeypatch, **options)
    _, threads = answer(model, machine, [0, 4])
    model.close()
    assert threads == [2, 2]


@pytest.mark.parametrize(
    ("machine", "accelerator", "may_vary"),
    [
        ("x86_64", False, True),
        ("AMD64", False, True),
        ("x86_64", True, False),
        ("aarch64", False, False),
        ("arm64", True, False),
    ],
)
def test_the_number_stays_where_it_was_not_shown_to_change_no_bit(
    monkeypatch: pytest.MonkeyPatch, machine: str, accelerator: bool, may_vary: bool
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("foredraft.backends.llamacpp.devices.has_accelerator", lambda: accelerator)
    settings = loading.ContextSettings(
        context_length=64,
        sequences=1,
        threads=2,
        batch=64,
        ubatch=64,
        kv_types=("bf16", "f16"),
        flash_attention="auto",
        device="cpu",
    )
    assert loading._threads_may_vary(ModelOptions(), settings) == may_vary
    assert not loading._threads_may_vary(ModelOptions(), replace(settings, device="CUDA0 A GPU"))
