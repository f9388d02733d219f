"""Ctrl-C: where it waits, and that it is never lost."""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from command_line import Command, Ran
from foredraft.backends.llamacpp import progress
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.cli.interrupt import HeldCtrlC, Terminated, stop_code, terminable
from foredraft.cli.loading import _Spinner
from foredraft.engine.engine import Engine
from native_ctrl_c import ABORTED, press_in_a_forward


@pytest.fixture(autouse=True)
def handler() -> Iterator[object]:
    """What Ctrl-C does outside: a test that leaves something else behind fails."""
    before = signal.getsignal(signal.SIGINT)
    yield before
    after = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    assert after is before


def press_in_a_block(error: Exception | None = None) -> Iterator[object]:
    """Steps through a block in which Ctrl-C is pressed once: its handler before, and after."""
    with HeldCtrlC() as ctrl_c:
        yield signal.getsignal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert ctrl_c.pressed
        yield signal.getsignal(signal.SIGINT)
        if error:
            raise error


def test_ctrl_c_waits_for_the_end_of_the_block(handler: object) -> None:
    block = press_in_a_block()
    assert next(block) is not handler
    assert next(block) is signal.SIG_DFL, "a second one ends the process at once"
    with pytest.raises(KeyboardInterrupt):
        next(block)


def test_released_it_comes_at_once_and_only_once(handler: object) -> None:
    with HeldCtrlC() as ctrl_c:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            ctrl_c.release()
        assert signal.getsignal(signal.SIGINT) is handler
    with HeldCtrlC() as ctrl_c:
        ctrl_c.release()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_inside_the_block_it_can_be_raised_where_that_does_no_harm() -> None:
    with HeldCtrlC() as ctrl_c:
        ctrl_c.raise_pressed()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            ctrl_c.raise_pressed()


def test_an_error_of_the_block_goes_first() -> None:
    with pytest.raises(ValueError, match="oops"):
        list(press_in_a_block(ValueError("oops")))


def test_ctrl_c_while_weights_are_loaded(
    foredraft: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp reports its progress in a call from native code, where an exception would be lost."""
    arguments = ("run", tiny, "Hello", "-t", 1, "-n", 4)
    assert foredraft(*arguments).code == 0, "what is measured once is measured"
    load, close = Engine.load_together, Engine.close
    heard: list[str] = []

    def pressed(*arguments: Any, **options: Any) -> list[Engine]:
        def progress(fraction: float) -> None:
            if not heard:
                signal.raise_signal(signal.SIGINT)
            heard.append("progress")
            options["progress"](fraction)

        return load(*arguments, **{**options, "progress": progress})

    def closed(engine: Engine) -> None:
        heard.append("closed")
        close(engine)

    monkeypatch.setattr(Engine, "load_together", pressed)
    monkeypatch.setattr(Engine, "close", closed)
    check_stopped(foredraft(*arguments))
    assert heard == ["progress"], "llama.cpp has stopped at once, and there was nothing to close"


def test_ctrl_c_while_arithmetic_is_checked(
    foredraft: Command, tiny: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward of a large model takes many seconds: it is not waited for."""
    statuses = press_in_a_forward(monkeypatch)
    closed: list[object] = []
    close = LlamaCppModel.close

    def watched(model: LlamaCppModel) -> None:
        closed.append(model)
        close(model)

    monkeypatch.setattr(LlamaCppModel, "close", watched)
    check_stopped(foredraft("run", tiny, "Hello", "-t", 1, "-n", 4))
    assert statuses == [ABORTED]
    assert len(closed) == 1
    kept = [file.name for file in (own_cache / "probes").glob("*")]
    assert all(name.startswith(("kernels-", "opened-")) for name in kept), "what was not measured is not kept"


def test_ctrl_c_while_a_draft_model_is_loaded(
    foredraft: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert foredraft("run", tiny, "Hello", "-t", 1, "-n", 4).code == 0, "what is measured once is measured"
    spans: list[float] = []
    report = progress.Progress.report

    def pressed(self: progress.Progress, fraction: float, data: object) -> bool:
        if spans and fraction < spans[-1]:  # the second model begins
            signal.raise_signal(signal.SIGINT)
        spans.append(fraction)
        return report(self, fraction, data)

    monkeypatch.setattr(progress.Progress, "report", pressed)
    check_stopped(foredraft("run", tiny, "Hello", "-t", 1, "-n", 4, "-md", tiny))
    assert spans[-1] < spans[-2], "nothing was loaded after Ctrl-C"


def test_sigterm_is_as_ctrl_c_where_it_is_asked_for() -> None:
    with terminable():
        with pytest.raises(Terminated) as stop:
            signal.raise_signal(signal.SIGTERM)
        assert stop_code(stop.value) == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert stop_code(KeyboardInterrupt()) == 130


def test_sigterm_that_is_ignored_or_handled_stays_so() -> None:
    for chosen in (signal.SIG_IGN, lambda *_: None):
        signal.signal(signal.SIGTERM, chosen)
        try:
            with terminable():
                assert signal.getsignal(signal.SIGTERM) is chosen
                signal.raise_signal(signal.SIGTERM)
            assert signal.getsignal(signal.SIGTERM) is chosen
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def terminated_in_a_block() -> Iterator[None]:
    """Steps through a block in which SIGTERM comes once."""
    with HeldCtrlC() as ctrl_c:
        signal.raise_signal(signal.SIGTERM)
        assert ctrl_c.pressed
        yield


def test_sigterm_waits_where_ctrl_c_waits() -> None:
    with terminable():
        block = terminated_in_a_block()
        next(block)
        for second in (signal.SIGTERM, signal.SIGINT):
            assert signal.getsignal(second) is signal.SIG_DFL, "it ends the process at once"
        with pytest.raises(Terminated):
            next(block)
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)


def test_sigterm_is_held_by_nobody_who_did_not_ask() -> None:
    with HeldCtrlC():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_spinner_says_that_ctrl_c_was_heard() -> None:
    with HeldCtrlC() as ctrl_c:
        spinner = _Spinner(ctrl_c)
        spinner.text = "Loading the model… 5%"
        assert rendered(spinner) == "Loading the model… 5%"
        signal.raise_signal(signal.SIGINT)
        assert rendered(spinner) == "Loading the model… 5% Stopping; Ctrl-C again ends at once."
        with pytest.raises(KeyboardInterrupt):
            ctrl_c.raise_pressed()


def rendered(spinner: _Spinner) -> str:
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as capture:
        console.print(spinner)
    return capture.get().strip()


def check_stopped(ran: Ran) -> None:
    """Ended by Ctrl-C before there was an answer."""
    assert ran.code == 130
    assert ran.out == ""
    assert ran.err.strip() == "Stopped."
