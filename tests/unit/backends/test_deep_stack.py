"""Words without end: split on a stack that is deep enough, or refused; never the end of the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest

import gguf_factory
from foredraft.backends.llamacpp.deep_stack import MOST, SAFE, longest_run, with_room_for
from foredraft.errors import RequestError
from foredraft.isolation.pool import ChildPool


@pytest.fixture
def children() -> Iterator[ChildPool]:
    with ChildPool(size=1, memory=4 << 30) as children:
        yield children


@pytest.mark.parametrize("split", ["gpt-4o", "deepseek-v3", "bloom"])
def test_a_long_word_is_split_by_tokenizers_that_go_deep(
    split: str, children: ChildPool, tmp_path: Path
) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        for values in writer.kv_data:
            values["tokenizer.ggml.pre"].value = split

    path = gguf_factory.tiny_llama(tmp_path / "m.gguf", edit=edit)
    for word in ("a" * 60_000, "👩" * 60_000, " " * 60_000, "!" * 60_000, "a" * MOST):
        assert children.call("tokenizer_loads:survives", str(path), word, seconds=300.0) is True


@pytest.mark.parametrize(
    ("text", "run"), [("", 0), ("abc", 3), ("ab  cde \n f", 3), ("a     b", 5), ("\u3000\u00a0x", 3)]
)
def test_a_run_is_a_word_or_the_space_between_two(text: str, run: int) -> None:
    assert longest_run(text) == run


def test_usual_texts_stay_on_their_thread() -> None:
    here, stack = threading.current_thread(), threading.stack_size()
    assert with_room_for("word " * 10_000, threading.current_thread) is here
    assert with_room_for("a" * SAFE, threading.current_thread) is here
    assert with_room_for("a" * (SAFE + 1), threading.current_thread) is not here
    assert threading.stack_size() == stack


def test_errors_come_back_and_what_is_too_long_is_refused() -> None:
    with pytest.raises(ZeroDivisionError):
        with_room_for("a" * 1000, lambda: 1 // 0)
    with pytest.raises(RequestError, match=f"maximum is {MOST}"):
        with_room_for("a" * (MOST + 1), lambda: 1)
