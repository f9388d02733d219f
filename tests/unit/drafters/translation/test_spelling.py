"""Text in the target's tokens, as the target would go on, and the probabilities of those tokens."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.translation.pieces import encode
from foredraft.drafters.translation.spelling import products, spell
from foredraft.drafters.translation.vocabulary import VocabularyPair
from two_tokenizers import ALL, COARSE, FINE, WORDS, PrefixingTokenizer, WordTokenizer, text_of

TEXTS = st.text(st.sampled_from("the cat sat on 漢字🙂Привет é\n"), max_size=30)


def spelled(tokenizer: WordTokenizer, context: str | bytes, text: str | bytes) -> list[bytes]:
    raw = [part if isinstance(part, bytes) else part.encode() for part in (context, text)]
    pieces = spell(tokenizer, VocabularyPair(tokenizer, FINE), raw[0], raw[1])
    parts = [tokenizer.token_bytes(token) for token in pieces.tokens]
    assert pieces.ends == [len(b"".join(parts[: i + 1])) for i in range(len(parts))]
    return parts


@pytest.mark.parametrize("name", ALL)
@given(before=TEXTS, text=TEXTS, cut=st.integers(0, 3))
def test_it_is_the_text_in_as_many_tokens_as_there_are_whole(
    name: str, before: str, text: str, cut: int
) -> None:
    tokenizer = ALL[name]
    raw = text.encode()[: max(0, len(text.encode()) - cut)]
    pieces = spell(tokenizer, VocabularyPair(tokenizer, FINE), before.encode(), raw)
    assert text_of(tokenizer, pieces.tokens).decode() == raw.decode(errors="ignore")
    whole = encode(tokenizer, before + text)
    count = whole.after(len(before.encode()))
    if count is not None and not cut:
        assert pieces.tokens == whole.tokens[count:]


def test_context_decides_how_text_is_cut() -> None:
    assert spelled(COARSE, "th", "e cat the") == [b"e", b" cat", b" the"]  # not "the cat"
    assert spelled(COARSE, "x", " cat the") == [b" cat", b" the"]


def test_the_rest_of_a_token_is_spelled_in_the_longest_there_are() -> None:
    tokenizer = WordTokenizer(["hello", "lo", " world"])
    assert spelled(tokenizer, "say hel", "lo world") == [b"lo", b" world"]


def test_a_character_goes_on_where_the_context_broke_off() -> None:
    smile = "🙂".encode()
    assert spelled(WORDS, b"x" + smile[:2], smile[2:] + b"the") == [smile[2:3], smile[3:], b"the"]
    assert spelled(COARSE, b"x" + smile[:2], smile[2:] + b"the") == [smile[2:3], smile[3:], b"the"]
    assert spelled(COARSE, b"x" + smile[:1], smile[1:2]) == []


def test_a_space_that_the_tokenizer_adds_is_not_drafted() -> None:
    tokenizer = PrefixingTokenizer(["cat", " cat", "the"])
    assert spelled(tokenizer, "the", " cat the") == [b" cat", b" ", b"the"]
    assert spelled(tokenizer, "x ", "cat") == [b"cat"]


def test_a_text_that_cannot_be_spelled_ends_there() -> None:
    class Gap(WordTokenizer):
        """Has no byte tokens."""

        def __init__(self) -> None:
            super().__init__(["hello", "l"])
            self._pieces = [b"\xfe" if len(piece) == 1 and piece != b"l" else piece for piece in self._pieces]

    tokenizer = Gap()
    assert spell(tokenizer, VocabularyPair(tokenizer, FINE), b"hel", b"lo").ends == [1]


@given(
    widths=st.lists(st.tuples(st.integers(1, 5), st.floats(0.01, 1.0)), min_size=1, max_size=8),
    marks=st.lists(st.integers(1, 30), unique=True, max_size=6).map(sorted),
)
def test_probability_is_neither_lost_nor_made(widths: list[tuple[int, float]], marks: list[int]) -> None:
    bounds = list(accumulate((width for width, _ in widths), initial=0))
    ends = [mark for mark in marks if mark < bounds[-1]] + bounds[-1:]
    shares = products(bounds[:-1], [p for _, p in widths], ends)
    assert len(shares) == len(ends)
    assert math.prod(shares) == pytest.approx(math.prod(p for _, p in widths))


def test_probability_by_token() -> None:
    assert products([0, 1, 3], [0.5, 0.9, 0.8], [1, 3, 4]) == [0.5, 0.9, 0.8]
    assert products([0, 1, 3], [0.5, 0.9, 0.8], [3, 4]) == [0.45, 0.8]
    assert products([0], [0.25], [2, 4]) == [0.25, 1.0]  # the second came with the first
    assert products([-2, 1], [0.5, 0.9], [1]) == [0.5]  # it began in a character that was begun
    assert products([0, 1], [0.5, 0.9], []) == []
