"""Two vocabularies side by side."""

from __future__ import annotations

import numpy as np

from foredraft.drafters.translation.vocabulary import VocabularyPair
from two_tokenizers import ALL, BYTES, COARSE, FINE, WORDS, WordTokenizer


def test_shared_tokens_have_the_same_bytes() -> None:
    for ours in ALL.values():
        for theirs in ALL.values():
            pair = VocabularyPair(ours, theirs)
            both = 0
            for token in range(ours.vocab_size - 2):
                other = int(pair.to_draft[token])
                if other >= 0:
                    assert ours.token_bytes(token) == theirs.token_bytes(other)
                    assert pair.to_target[other] == token
                    both += 1
                else:
                    assert ours.token_bytes(token) not in {
                        theirs.token_bytes(any_) for any_ in range(theirs.vocab_size)
                    }
            assert pair.shared == both
            assert pair.share == both / (ours.vocab_size - 2)


def test_the_first_token_of_a_draft_token_is_its_longest_beginning() -> None:
    pair = VocabularyPair(FINE, COARSE)
    beginnings = {
        COARSE.token_bytes(token).decode(): FINE.token_bytes(int(pair.first[token]))
        for token in range(256, COARSE.vocab_size - 2)
    }
    assert beginnings["the cat"] == b"th"
    assert beginnings[" sat on"] == b" s"
    assert beginnings["漢字"] == "漢".encode()
    assert beginnings["ет"] == b"\xd0"
    assert pair.beginning(b"nd the") == FINE.encode("nd")[0]
    assert pair.beginning(b"") == -1


def test_ends_and_control_tokens_are_matched() -> None:
    pair = VocabularyPair(COARSE, FINE)
    (end,), (other,) = COARSE.end_tokens, FINE.end_tokens
    assert pair.to_draft[end] == other == pair.first.size - 1
    assert pair.to_target[other] == pair.first[other] == end
    assert pair.control == {COARSE.separator: [FINE.separator]}
    assert pair.to_draft[COARSE.separator] == -1


def test_mark_up_that_the_draft_model_does_not_know_is_written_out() -> None:
    class Plain(WordTokenizer):
        def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
            return super().encode(text)

    pair = VocabularyPair(COARSE, Plain([]))
    assert pair.control == {COARSE.separator: Plain([]).encode("<sep>")}


def test_of_tokens_with_the_same_bytes_the_one_that_is_written_counts() -> None:
    class Doubled(WordTokenizer):
        """Has a second "a" that it never writes, as a byte token beside a letter."""

        def __init__(self, first: bool) -> None:
            super().__init__(["the"])
            self._pieces = [b"a", *self._pieces] if first else [*self._pieces, b"a"]
            self._ids = {piece: token for token, piece in reversed(list(enumerate(self._pieces)))}
            if first:
                self._ids[b"a"] = 98
            self.vocab_size = len(self._pieces) + 2
            self.end_tokens = frozenset({self.vocab_size - 1})

    for first in (True, False):
        doubled = Doubled(first)
        (written,) = doubled.encode("a")
        pair = VocabularyPair(doubled, BYTES)
        assert pair.to_target[ord("a")] == written
        assert np.count_nonzero(pair.to_draft == ord("a")) == 1


def test_the_share_counts_the_target_s_tokens() -> None:
    assert VocabularyPair(BYTES, WORDS).share == 1.0
    assert VocabularyPair(WORDS, BYTES).share == 256 / 266
