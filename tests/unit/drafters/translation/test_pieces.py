"""Cutting text into tokens: where each ends, whatever the bytes."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.translation.pieces import (
    Pieces,
    encode,
    encode_bytes,
    gives_text_back,
    texts,
    unfinished,
)
from foredraft.testing import FakeTokenizer
from two_tokenizers import ALL, COARSE, FINE, PrefixingTokenizer, WordTokenizer, text_of

TEXTS = st.text(st.sampled_from("the cat sat on 漢字🙂Привет é\n"), max_size=30)


class Lowering(WordTokenizer):
    """Normalises: what it gives back is another text."""

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        return super().encode(text.lower() + "!")


@pytest.mark.parametrize("name", ALL)
@given(text=TEXTS)
def test_ends_are_those_of_the_tokens_bytes(name: str, text: str) -> None:
    pieces = encode(ALL[name], text)
    assert text_of(ALL[name], pieces.tokens).decode() == text
    assert pieces.ends == list(accumulate(len(ALL[name].token_bytes(token)) for token in pieces.tokens))
    assert encode_bytes(ALL[name], text.encode()) == pieces


def test_a_space_that_the_tokenizer_adds_belongs_to_no_byte() -> None:
    tokenizer = PrefixingTokenizer(["cat", " cat"])
    pieces = encode(tokenizer, "cat!")
    assert [tokenizer.token_bytes(token) for token in pieces.tokens] == [b" cat", b"!"]
    assert pieces.ends == [3, 4]
    alone = encode(tokenizer, "dog")
    assert alone.ends == [0, 1, 2, 3]
    assert alone.after(0) == 1  # the space is before the text


def test_of_a_text_that_does_not_come_back_only_the_end_is_known() -> None:
    pieces = encode(Lowering([]), "ABC")
    assert pieces.ends == [3, 3, 3, 3]
    assert pieces.after(3) == 4
    assert pieces.after(1) is None


@given(raw=st.one_of(st.binary(max_size=24), TEXTS.map(str.encode)), cut=st.integers(0, 24))
def test_texts_are_what_utf_8_has_in_the_bytes(raw: bytes, cut: int) -> None:
    raw = raw[: max(0, len(raw) - cut % 4)]
    found = list(texts(raw))
    assert "".join(text for _, text in found) == raw.decode(errors="ignore")
    for offset, text in found:
        assert text
        assert raw[offset:].startswith(text.encode())


@given(text=TEXTS, count=st.integers(0, 4))
def test_unfinished_counts_the_bytes_of_a_cut_character(text: str, count: int) -> None:
    raw = text.encode()
    raw = raw[: max(0, len(raw) - count)]
    whole = raw.decode(errors="ignore").encode()
    assert unfinished(raw) == len(raw) - len(whole)


def test_bytes_of_no_text_are_not_waited_for() -> None:
    assert unfinished(b"ab\xff") == unfinished(b"ab\xf8\x80") == unfinished(b"\xc0") == 0
    assert unfinished(b"\x80\x80\x80\x80") == 0
    assert encode_bytes(COARSE, b"the\xff cat\xf0\x9f").ends == [3, 8]


def test_pieces_join_and_are_cut() -> None:
    pieces = Pieces([1, 2], [3, 4])
    pieces.extend(Pieces([7, 8], [2, 5]), 1, shift=4)
    assert pieces == Pieces([1, 2, 8], [3, 4, 9])
    pieces.cut(1)
    assert (len(pieces), pieces.after(0), pieces.after(3), pieces.after(4)) == (1, 0, 1, None)


def test_which_tokenizers_give_text_back() -> None:
    assert all(
        gives_text_back(tokenizer) for tokenizer in (COARSE, FINE, PrefixingTokenizer([]), FakeTokenizer())
    )
    assert not gives_text_back(FakeTokenizer(24))
    assert not gives_text_back(Lowering([]))
