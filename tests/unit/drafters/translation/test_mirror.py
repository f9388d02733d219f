"""A request's text in the draft model's tokens, through any history."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.translation.mirror import RECENT, Mirror
from foredraft.drafters.translation.vocabulary import VocabularyPair
from two_tokenizers import ALL, BYTES, COARSE, FINE, TEXT, WORDS, PrefixingTokenizer, WordTokenizer, text_of

PAIRS = [(a, b) for a, b in product(ALL, ALL) if a != b]
by_pair = pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=[f"{a} {b}" for a, b in PAIRS])
WORDS_OF_TEXT = ["the", "the cat", " cat", " sat on", " s", "漢字", "🙂", "Привет", "\n    ", "x", "<sep>"]
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.lists(st.sampled_from(WORDS_OF_TEXT), max_size=8),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=8,
)


def mirror(ours: WordTokenizer, theirs: WordTokenizer) -> Mirror:
    return Mirror(ours, theirs, VocabularyPair(ours, theirs))


def read(ours: WordTokenizer, theirs: WordTokenizer, history: Sequence[int]) -> Mirror:
    made = mirror(ours, theirs)
    made.follow(history, 0)
    return made


@by_pair
@given(changes=CHANGES)
def test_it_is_what_reading_the_history_afresh_gives(
    ours: str, theirs: str, changes: list[tuple[int, list[str], int]]
) -> None:
    target, draft = ALL[ours], ALL[theirs]
    made, history = mirror(target, draft), list[int]()
    for removed, words, cut in changes:
        kept = max(0, len(history) - removed)
        added = target.encode("".join(words), special=True)
        history[kept:] = added[: max(0, len(added) - cut)]
        before = list(made.pieces.tokens)
        same = made.follow(history, kept)
        fresh = read(target, draft, history)
        assert made.pieces == fresh.pieces
        assert made.pending == fresh.pending
        assert made.pieces.tokens[:same] == before[:same]
        assert len(before) >= same


@by_pair
def test_growing_text_changes_its_last_tokens_only(ours: str, theirs: str) -> None:
    target, draft = ALL[ours], ALL[theirs]
    made, history = mirror(target, draft), target.encode(TEXT * 4)
    for size in range(1, len(history) + 1):
        before = len(made.pieces)
        same = made.follow(history[:size], size - 1)
        assert before - same <= 7  # the longest token's bytes
    assert text_of(draft, made.pieces.tokens).decode() == TEXT * 4


def test_a_character_is_held_back_until_it_is_complete() -> None:
    made = mirror(BYTES, WORDS)
    history = BYTES.encode("the 🙂!")
    lengths = []
    for size in range(1, len(history) + 1):
        made.follow(history[:size], size - 1)
        lengths.append((text_of(WORDS, made.pieces.tokens).decode(), made.pending))
    smile = "🙂".encode()
    assert lengths[4:8] == [("the ", smile[:1]), ("the ", smile[:2]), ("the ", smile[:3]), ("the 🙂", b"")]


def test_nothing_is_merged_across_a_control_token() -> None:
    history = [*COARSE.encode("the"), COARSE.separator, *COARSE.encode(" cat")]
    made = read(COARSE, WORDS, history)
    assert made.pieces.tokens == [*WORDS.encode("the"), WORDS.separator, *WORDS.encode(" cat")]
    assert made.tail(99) == b" cat"
    broken = read(BYTES, WORDS, [*BYTES.cut(b"a\xf0\x9f"), BYTES.separator, *BYTES.cut(b"\x99\x82b")])
    assert broken.pieces.tokens == [*WORDS.encode("a"), WORDS.separator, *WORDS.encode("b")]
    assert broken.pending == b""


def test_how_much_is_cut_alike() -> None:
    assert mirror(COARSE, FINE).recent() == (VocabularyPair(COARSE, FINE).share, 1.0)
    assert read(BYTES, BYTES, BYTES.encode(TEXT)).recent() == (1.0, 1.0)
    assert read(COARSE, WORDS, COARSE.encode(" sat on the" * 5)).recent() == (0.5, 1.5)
    # Only the recent text counts, and a control token is no text.
    history = [*COARSE.encode("the cat" * 40), COARSE.separator, *COARSE.encode("xy" * RECENT)]
    assert read(COARSE, BYTES, history).recent() == (1.0, 1.0)
    assert read(COARSE, BYTES, COARSE.encode("the cat" * 10)).recent() == (0.0, 7.0)


def test_a_tokenizer_s_own_beginning_comes_first() -> None:
    class Beginning(WordTokenizer):
        def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
            return [self.separator] * add_bos + super().encode(text)

    made = read(COARSE, Beginning([]), COARSE.encode("the cat"))
    assert made.pieces.tokens == [made.pieces.tokens[0], *b"the cat"]
    assert made.follow([], 0) == 1
    assert len(made.pieces) == 1


def test_a_space_that_the_tokenizer_adds_is_there_once() -> None:
    draft = PrefixingTokenizer([" the", "the", " cat", "mat"])
    made, history = mirror(BYTES, draft), BYTES.encode(TEXT * 2)
    for size in range(1, len(history) + 1):
        made.follow(history[:size], size - 1)
        read_so_far = bytes(history[: size - len(made.pending)])
        assert text_of(draft, made.pieces.tokens) == b" " + read_so_far
        assert made.pieces.ends[-1] == len(read_so_far)


def test_text_that_does_not_come_back_is_still_read_once() -> None:
    class Folding(WordTokenizer):
        """Knows small letters only, so nobody can tell where in a text with others its tokens end."""

        def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
            return super().encode(text.lower())

    draft = Folding([" cat", "the"])
    made, history = mirror(BYTES, draft), BYTES.encode("The Cat sat on the mat. the cat did not. " * 8)
    for size in range(1, len(history) + 1, 3):
        made.follow(history[:size], max(0, size - 3))
        assert text_of(draft, made.pieces.tokens) == bytes(history[:size]).lower()
    made.follow(history[:100], 100)
    assert bytes(history[:100]).lower().startswith(text_of(draft, made.pieces.tokens))
