"""A head's header is read once, and it is tried once: in one child with its model where it is known then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import time
from typing import Any

import pytest

import gguf_factory
import gguf_heads
from foredraft import Engine
from foredraft.backends.llamacpp import BACKEND, gguf_file, gguf_native, trial
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.config import ModelOptions
from foredraft.errors import ChildDiedError, ChildMemoryError, ChildTimeoutError, ModelFormatError
from foredraft.isolation.pool import ChildPool

Call = tuple[str, list[str]]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return gguf_factory.tiny_llama(tmp_path / "m.gguf", layers=4)


@pytest.fixture
def head(tmp_path: Path) -> Path:
    return gguf_heads.tiny_eagle3(tmp_path / "m-eagle3.gguf")


@pytest.fixture(autouse=True)
def _unknown() -> None:
    trial._known.clear()
    gguf_file._read_settled.cache_clear()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What children are asked to do, which they do."""
    made: list[Call] = []

    class Children(ChildPool):
        def call(self, function: str, *args: Any, seconds: float) -> Any:
            made.append((function.partition(":")[2], [Path(name).name for name in args[0]]))
            return super().call(function, *args, seconds=seconds)

    monkeypatch.setattr(trial, "start_children", lambda: Children(size=1, memory=trial.MEMORY))
    return made


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Call]]:
    """Children that do nothing, and fail with an error where a head is tried."""

    def start(error: Exception | None = None) -> list[Call]:
        made: list[Call] = []

        class Children:
            def __enter__(self) -> Children:
                return self

            def __exit__(self, *_: object) -> None: ...

            def call(self, function: str, paths: Sequence[str], *_: object, seconds: float) -> None:
                made.append((function.partition(":")[2], [Path(name).name for name in paths]))
                if error is not None and len(paths) > 1:
                    raise error

        monkeypatch.setattr(trial, "start_children", Children)
        return made

    return start


def load(target: Path, cache: Path) -> None:
    with Engine.load(target, threads=1, gpu_layers=0, cache_dir=cache, remember=False) as engine:
        assert engine.setup.head is not None, engine.notes


def test_every_header_is_read_once(
    target: Path, head: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = gguf_native.read_header

    def noting(path: Path) -> Any:
        read.append(path.name)
        return original(path)

    monkeypatch.setattr(gguf_file, "read_header", noting)
    monkeypatch.setattr(gguf_file, "SETTLED_NS", 0)
    load(target, own_cache)
    assert sorted(read) == ["m-eagle3.gguf", "m.gguf"]


def test_a_file_that_changes_is_read_again(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "SETTLED_NS", 0)
    assert read_gguf(target) is read_gguf(target)
    before = read_gguf(target).name
    gguf_factory.tiny_llama(target, layers=4, name="Other Name")
    assert read_gguf(target).name != before


def test_a_file_that_was_just_written_is_not_taken_as_known(target: Path) -> None:
    assert read_gguf(target) is not read_gguf(target)


def test_a_head_is_tried_with_its_model(target: Path, head: Path, own_cache: Path, calls: list[Call]) -> None:
    load(target, own_cache)
    assert calls == [("open_model", ["m.gguf", "m-eagle3.gguf"])]
    trial._known.clear()
    load(target, own_cache)
    assert len(calls) == 1


def test_a_head_of_a_model_that_is_known_is_tried_before_that_is_loaded(
    target: Path, head: Path, own_cache: Path, calls: list[Call]
) -> None:
    options = ModelOptions(cache_dir=own_cache, watch=BACKEND.features_for(target, head))
    trial.admit(read_gguf(target), options)
    load(target, own_cache)
    assert calls == [("open_model", ["m.gguf"]), ("open_head", ["m.gguf", "m-eagle3.gguf"])]


def test_a_head_that_fails_with_its_model_is_refused_alone(
    target: Path, head: Path, own_cache: Path, pretend: Callable[..., list[Call]]
) -> None:
    calls = pretend(ChildDiedError("Its process ended: signal 11, SIGSEGV."))
    for _ in range(2):
        trial._known.clear()
        with Engine.load(target, threads=1, gpu_layers=0, cache_dir=own_cache, remember=False) as engine:
            [note] = [one for one in engine.notes if "heads" in one]
            assert "ends the process with it (signal 11, SIGSEGV)" in note
            assert len(engine.generate([5], max_tokens=3, ignore_eos=True).tokens) == 3
    both = ["m.gguf", "m-eagle3.gguf"]
    assert calls == [("open_model", both), ("open_model", ["m.gguf"]), ("open_head", both)]


@pytest.mark.parametrize(
    "error", [ChildTimeoutError("It takes longer than 60 s."), ChildMemoryError("More.")]
)
def test_a_head_that_takes_too_long_is_tried_again_after_a_day(
    target: Path,
    head: Path,
    own_cache: Path,
    pretend: Callable[..., list[Call]],
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ModelOptions(cache_dir=own_cache, watch=BACKEND.features_for(target, head))
    files = read_gguf(target), read_gguf(head)
    calls = pretend(error)
    for known in (False, True, False):
        if not known:
            trial._known.clear()
        with pytest.raises(ModelFormatError, match="its trial in a child process failed") as caught:
            trial.admit_head(*files, options)
        assert error.args[0] in caught.value.message
        assert "again after a day" in (caught.value.hint or "")
    assert len(calls) == 1
    now = time()
    monkeypatch.setattr(trial, "time", lambda: now + trial.HEAD_AGAIN_S + 1)
    calls = pretend()
    trial.admit_head(*files, options)
    assert len(calls) == 1
