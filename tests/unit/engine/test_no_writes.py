"""Nothing is written to a disk by the thread that decodes.

`close` and `set_speculation` save what was learnt; another thread writes what has to be written earlier.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import gguf_factory
from foredraft import Engine, SamplingParams
from foredraft.drafters import suffix_store

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGING = {"os.rename", "os.remove", "os.mkdir", "os.truncate", "os.chmod", "os.link", "tempfile.mkstemp"}
ANSWER = SamplingParams(max_tokens=40, ignore_eos=True)


class _Watch:
    """Hears of every file that one thread opens: a test double for the disk could be gone around."""

    def __init__(self) -> None:
        self.seen: list[str] | None = None
        self.thread = 0

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.seen is None or threading.get_ident() != self.thread:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING and path != os.devnull:
                self.seen.append(f"open {path!r}")
        elif event in CHANGING:
            self.seen.append(f"{event} {arguments[0]!r}")


_watch = _Watch()


@pytest.fixture(scope="module", autouse=True)
def _hook() -> None:
    sys.addaudithook(_watch)  # it cannot be removed again; without `seen` it does nothing


@contextmanager
def writes() -> Iterator[list[str]]:
    """What this thread writes or changes on the disk within."""
    seen: list[str] = []
    _watch.seen, _watch.thread = seen, threading.get_ident()
    try:
        yield seen
    finally:
        _watch.seen = None


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    path = gguf_factory.tiny_llama(tmp_path / "tiny.gguf")
    with Engine.load(path, threads=1, sequences=4, cache_dir=tmp_path / "cache") as loaded:
        yield loaded


def prompts(count: int) -> Sequence[list[int]]:
    """Prompts that repeat themselves, so that there is something to draft."""
    return [[3 + n, 40, 41, 42 + n, 43] * 8 for n in range(count)]


def test_the_watch_sees_what_is_written(tmp_path: Path) -> None:
    with writes() as seen:
        (tmp_path / "a").write_text("a", encoding="utf-8")
        (tmp_path / "a").read_text(encoding="utf-8")
        (tmp_path / "a").rename(tmp_path / "b")
    assert len(seen) == 2


def test_no_request_writes_and_closing_saves(engine: Engine, tmp_path: Path) -> None:
    """With `suffix` always drafting: what `auto` drafts with so small a model depends on the machine."""
    drafted = 0
    for speculation in ("suffix", "auto"):
        engine.set_speculation(speculation)
        with writes() as seen:
            done = engine.run([engine.add(prompt, ANSWER) for prompt in prompts(6)])
        assert not seen
        drafted += sum(completion.timings.draft_n for completion in done)
    assert drafted > 0
    with writes() as saved:
        engine.close()
    assert any("profiles" in path for path in saved)
    assert list((tmp_path / "cache").rglob("suffix-*"))


def test_prefixes_are_written_elsewhere(tmp_path: Path) -> None:
    """Three conversations in one sequence make room for each other all the time."""
    path = gguf_factory.tiny_llama(tmp_path / "tiny.gguf")
    with Engine.load(
        path, speculate="off", threads=1, cache_dir=tmp_path, prefix_cache_gb=1, remember=True
    ) as engine:
        with writes() as seen:
            for prompt in [*prompts(3), *prompts(3)]:
                engine.generate(prompt, ANSWER)
        assert not seen
        with writes() as saved:
            engine.close()
    assert not [path for path in saved if "prefix" in path]
    assert len(list((tmp_path / "prefixes").glob("*.bin"))) == 3


def test_other_speculation_saves_what_was_learnt(engine: Engine) -> None:
    engine.generate(prompts(1)[0], ANSWER)
    with writes() as saved:
        engine.set_speculation("off")
    assert any("profiles" in path for path in saved)


def test_many_users_do_not_make_it_write(engine: Engine) -> None:
    """Each has past outputs of their own, and only some stay in memory."""
    engine.generate(prompts(1)[0], ANSWER)
    with writes() as seen:
        engine.run([engine.add(prompt, ANSWER, scope=f"user {i}") for i, prompt in enumerate(prompts(10))])
    assert not seen


def test_many_outputs_do_not_make_it_write(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_store, "FLUSH_TOKENS", 100)
    with writes() as seen:
        engine.run([engine.add(prompt, ANSWER) for prompt in prompts(8)])
    assert not seen
