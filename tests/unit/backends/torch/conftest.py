"""What the tests of the torch backend share: tiny models on disk, made once, and one thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
import transformers

import torch_factory
from foredraft.backends.torch.recurrent import Layers

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

Folder = Callable[..., Path]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The folder of a tiny model: `folder("qwen3", seed=1, …)`."""
    root = tmp_path_factory.mktemp("transformers")

    def make(architecture: str = "llama", **changes: Any) -> Path:
        name = "-".join([architecture, *(f"{key}={value}" for key, value in sorted(changes.items()))])
        path = root / (name if len(name) < 100 else f"{architecture}-{crc32(name.encode())}")
        if not path.exists():
            torch_factory.make_model(path, architecture, **changes)
        return path

    return make


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no recurrent layer called its kernels by a name that we know."""
    monkeypatch.setattr(Layers, "take_over", lambda *_: False)
