"""What is there once a model is loaded is not looked at again by the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import gguf_factory
from foredraft.cli.loading import load_engine
from foredraft.config import Speculation
from foredraft.engine.loading import freeze_heap
from foredraft.server.run import loader
from foredraft.server.settings import ModelSettings, ServerSettings


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


class Ring:
    """Garbage that only the collector can find."""

    def __init__(self) -> None:
        self.itself = self


def test_a_full_collection_looks_at_what_came_later() -> None:
    before = len(gc.get_objects())

    freeze_heap()

    later = [Ring() for _ in range(3)]
    left = [it for it in gc.get_objects() if isinstance(it, Ring)]
    assert gc.get_freeze_count() > 1000
    assert len(gc.get_objects()) < before / 10
    assert left == later


def test_garbage_is_not_kept() -> None:
    gone = weakref.ref(Ring())
    freeze_heap()
    assert gone() is None


def test_what_was_left_out_and_is_garbage_now_goes_with_the_next_model() -> None:
    ring = Ring()
    gone = weakref.ref(ring)
    freeze_heap()
    del ring
    gc.collect()
    assert gone() is not None, "it was left out"

    freeze_heap()

    assert gone() is None


def test_the_command_line_does_it_after_loading(tmp_path: Path) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "tiny.gguf")
    options = {"threads": 1, "gpu_layers": 0, "context_length": 256, "remember": False}
    with load_engine(path, Speculation(), options, Console(file=StringIO())):
        assert gc.get_freeze_count() > 1000


def test_a_server_does_it_after_loading(tmp_path: Path) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "tiny.gguf")
    model = ModelSettings(path=str(path), threads=1, gpu_layers=0, context_length=256)
    settings = ServerSettings(models={"tiny": model}, cache_dir=tmp_path / "cache")
    with loader(settings)(model):
        assert gc.get_freeze_count() > 1000
