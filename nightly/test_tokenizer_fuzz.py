"""Random texts for the tokenizer of the default model, hostile ones among them: none may end the process."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st

from foredraft.isolation.pool import ChildPool
from fuzzing import until_it_is_over

# fmt: off
PIECES = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|", "|>", "\x00", "\ufeff", "\u202e", "\u200b",
    "\r\n", "\ufffd", "\u00e9", "e\u0301", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\ufdfd",
    "\U0010ffff", "\ud800", "\udfff", " " * 40, "\t", "a", "the ", "0" * 30, "\u0627",
]
# fmt: on
PER_CHARACTER = 1e-4
"""Seconds: a hundred times what is usual on an idle machine."""


@pytest.fixture(scope="module")
def pool() -> Iterator[ChildPool]:
    with ChildPool(size=1, memory=4 << 30, output=64 << 20) as children:
        children.call("fuzz_children:tokenize", "load the model", False, seconds=900.0)
        yield children


def long(piece: str, count: int) -> str:
    return piece * (count // len(piece))


TEXTS = st.one_of(
    st.text(max_size=300),
    st.text(alphabet=st.characters(exclude_categories=()), max_size=100),  # with half characters
    st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=60).map("".join),
    st.builds(long, st.sampled_from(PIECES) | st.text(min_size=1, max_size=4), st.integers(1, 100_000)),
)


def test_texts(pool: ChildPool, seconds: float) -> None:
    """The tokens have the text's bytes, but for those that this vocabulary cannot spell at all."""
    unspelled = pool.call("fuzz_children:unspelled", seconds=60.0)

    def check(text: str, number: int) -> None:
        special = bool(number % 2)
        began = time.monotonic()
        written = pool.call("fuzz_children:tokenize", text, special, seconds=60.0 + PER_CHARACTER * len(text))
        assert time.monotonic() - began < 60.0 + PER_CHARACTER * len(text)
        if not special:
            raw = text.encode("utf-8", "surrogatepass")  # half a character is three bytes like any others
            assert written == bytes(byte for byte in raw if byte not in unspelled)

    assert until_it_is_over(seconds, TEXTS, check)
