"""A closed model must say so: using freed memory would end the process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import gguf_factory
from foredraft import Engine
from foredraft.errors import BackendError, RequestError
from foredraft.types import Rows


def test_everything_after_close_is_an_error_and_no_crash(tmp_path: Path) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "tiny.gguf", weight_type="q8_0")
    engine = Engine.load(path, threads=1, cache_dir=tmp_path, remember=False)
    model = engine.model
    stream = engine.stream("Hello", max_tokens=20)
    next(stream)
    engine.close()
    engine.close()
    stream.close()
    for call in (lambda: engine.encode("x"), lambda: engine.set_speculation("auto"), lambda: engine.add("x")):
        with pytest.raises(RequestError, match="closed"):
            call()
    natives: tuple[Callable[[], object], ...] = (
        lambda: model.forward([Rows(0, 0, (1,), 1)]),
        lambda: model.release(0),
        lambda: model.snapshot(0),
        lambda: model.tokenizer.encode("x"),
    )
    for native in natives:
        with pytest.raises(BackendError, match="closed"):
            native()
