"""Ctrl-C: where it waits, and that it is never lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import Command
from foretoken.cli.interrupt import HeldCtrlC
from foretoken.engine.engine import Engine


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


def test_an_error_of_the_block_goes_first() -> None:
    with pytest.raises(ValueError, match="oops"):
        list(press_in_a_block(ValueError("oops")))


def test_ctrl_c_while_weights_are_loaded(
    foretoken: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp reports its progress in a call from native code, where an exception would be lost."""
    arguments = ("run", tiny, "Hello", "-t", 1, "-n", 4)
    assert foretoken(*arguments).code == 0, "what is measured once is measured"
    load, close = Engine.load, Engine.close
    heard: list[str] = []

    def pressed(*arguments: Any, **options: Any) -> Engine:
        def progress(fraction: float) -> None:
            if not heard:
                signal.raise_signal(signal.SIGINT)
            heard.append("progress")
            options["progress"](fraction)

        return load(*arguments, **{**options, "progress": progress})

    def closed(engine: Engine) -> None:
        heard.append("closed")
        close(engine)

    monkeypatch.setattr(Engine, "load", pressed)
    monkeypatch.setattr(Engine, "close", closed)
    ran = foretoken(*arguments)
    assert ran.code == 130
    assert ran.out == ""
    assert ran.err.strip() == "Stopped."
    assert heard[0] == "progress"
    assert heard[-1] == "closed"
