"""Odd texts through every way that llama.cpp has to split one: no crash, no hang, and they come back whole.

A client's text reaches these functions as it is; they are native, so a fault there would end the server.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import gguf
import pytest

import gguf_factory
from foredraft.errors import ChildError
from foredraft.isolation.pool import ChildPool

AT_ONCE = 50
PATIENCE = 300.0
"""Seconds for so many texts."""

SPLITS = (
    *("default", "llama-bpe", "deepseek-llm", "deepseek-coder", "deepseek-v3", "falcon", "mpt", "starcoder"),
    *("gpt-2", "refact", "command-r", "qwen2", "stablelm2", "olmo", "dbrx", "smaug-bpe", "poro-chat"),
    *("chatglm-bpe", "viking", "jais", "tekken", "smollm", "codeshell", "bloom", "gpt3-finnish", "exaone"),
    *("exaone4", "chameleon", "minerva-7b", "megrez", "gpt-4o", "llama4", "superbpe", "trillion"),
    *("granite-docling", "bailingmoe", "seed-coder", "a.x-4.0", "kimi-k2", "hunyuan", "hunyuan-dense"),
    *("grok-2", "afmoe", "minimax-m2", "qwen35", "glm4", "youtu", "solar-open", "joyai-llm"),
)
NORMALISED = ("chameleon",)
"""Here the text that comes back is another one."""


@pytest.fixture
def children() -> Iterator[ChildPool]:
    with ChildPool(size=1, memory=4 << 30) as children:
        yield children


def split_as(split: str, path: Path) -> Path:
    """A tiny model that splits texts so."""

    def edit(writer: gguf.GGUFWriter) -> None:
        for values in writer.kv_data:
            values["tokenizer.ggml.pre"].value = split

    return gguf_factory.tiny_llama(path, edit=edit)


def test_every_text_comes_back(children: ChildPool, tmp_path: Path, seconds: float) -> None:
    paths = {split: split_as(split, tmp_path / f"{number}.gguf") for number, split in enumerate(SPLITS)}
    faults: dict[tuple[str, int], list[str]] = {}
    until = monotonic() + seconds
    for first in itertools.count(0, AT_ONCE):
        for split, path in paths.items():
            if monotonic() > until:
                assert not faults
                return
            try:
                found = children.call("tokenizer_loads:encode", str(path), first, AT_ONCE, seconds=PATIENCE)
            except ChildError as error:
                found = [f"{first} on: {type(error).__name__}: {error.message}"]
            if found and split not in NORMALISED:
                faults[split, first] = found[:3]
