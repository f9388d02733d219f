"""An answer's text cut at a thought's marks, where the engine says that they are."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.sampling.thought import Tracker, plan_of
from foredraft.server.tools.thought import ThoughtSplitter
from foredraft.testing import FakeTokenizer
from foredraft.types import Constraint, Place, SamplingParams, Thinking

THINK = ("<think>", "</think>")
ANY = Constraint("regex", "(?s:.*)")


class Pieces(FakeTokenizer):
    """Bytes, and a token for each of some texts."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__(258 + len(texts))
        self.texts = texts

    def token_bytes(self, token: int) -> bytes:
        return super().token_bytes(token) if token < 258 else self.texts[token - 258].encode()


def split(
    text: str, cuts: list[int], *, begun: bool, cut: bool = False, constraint: Constraint | None = None
) -> tuple[str, str]:
    """(thought, answer) of a text in tokens that end at `cuts`."""
    places = sorted({min(at, len(text)) for at in cuts} | {0, len(text)})
    texts = [text[start:end] for start, end in pairwise(places)]
    thinking = Thinking(*THINK, "\n</think>\n\n", begun)
    plan = plan_of(SamplingParams(thinking=thinking, constraint=constraint), Pieces(texts))
    assert plan is not None
    tracker, splitter, pieces = Tracker.begin(plan), ThoughtSplitter(*THINK, begun=begun), []
    for number, piece in enumerate(texts):
        tracker.advance(258 + number)
        pieces += splitter.feed(piece, tracker.place)
    pieces += splitter.finish(cut=cut)
    assert all(text[piece.start : piece.end] == piece.text for piece in pieces)
    assert [piece.start for piece in pieces] == sorted(piece.start for piece in pieces)
    thought, said = ("".join(it.text for it in pieces if it.thought is kind) for kind in (True, False))
    return thought, said


@pytest.mark.parametrize(
    ("text", "begun", "expected"),
    [
        ("<think>\nHm, so.\n</think>\n\nYes.", False, ("Hm, so.", "Yes.")),
        ("\n<think>Hm</think>Yes.\n", False, ("Hm", "Yes.\n")),
        ("Hm, so.\n</think>\n\nYes.", True, ("Hm, so.", "Yes.")),
        ("\n\n</think>\n\nYes.", True, ("", "Yes.")),
        ("<think></think>", False, ("", "")),
        ("Yes, <think>no</think>.", False, ("", "Yes, <think>no</think>.")),
        ("<think>a <b> </thin </think>b</think>", False, ("a <b> </thin", "b</think>")),
        ("<thing>", False, ("", "<thing>")),
        ("  Yes", False, ("", "  Yes")),
        ("\v\f\t<think>Hm</think>Yes", False, ("Hm", "Yes")),
        ("\u00a0<think>Hm</think>", False, ("", "\u00a0<think>Hm</think>")),
        ("\u2003<think>Hm</think>", False, ("", "\u2003<think>Hm</think>")),
        ("\x1c<think>Hm</think>", False, ("", "\x1c<think>Hm</think>")),
        ("<thi", False, ("", "<thi")),
        ("Hm</thi", True, ("Hm</thi", "")),
        ("Hm \n", True, ("Hm \n", "")),
    ],
)
def test_only_the_beginning_is_a_thought(text: str, begun: bool, expected: tuple[str, str]) -> None:
    assert split(text, [], begun=begun) == expected


def test_what_may_begin_a_mark_is_not_shown_where_the_answer_was_cut_off() -> None:
    assert split("Hm</thi", [], begun=True, cut=True) == ("Hm", "")
    assert split("<thi", [], begun=False, cut=True) == ("", "")
    assert split("Hm. ", [], begun=True, cut=True) == ("Hm. ", "")


pieces = st.lists(st.sampled_from(["<think>", "</think>", "<", "</th", "a", " ", "\n", "b c"]), max_size=9)


@given(pieces=pieces, cuts=st.lists(st.integers(0, 40), max_size=6), begun=st.booleans(), cut=st.booleans())
def test_the_sum_does_not_depend_on_how_the_text_is_cut(
    pieces: list[str], cuts: list[int], begun: bool, cut: bool
) -> None:
    text = "".join(pieces)
    assert split(text, cuts, begun=begun, cut=cut) == split(text, [], begun=begun, cut=cut)


@given(pieces=pieces, cuts=st.lists(st.integers(0, 40), max_size=6))
def test_under_a_constraint_tokens_that_spell_the_mark_are_the_answer(
    pieces: list[str], cuts: list[int]
) -> None:
    text = "".join(pieces)
    assert split(text, cuts, begun=False, constraint=ANY) == ("", text)


def test_a_mark_without_text_ends_the_thought_where_the_engine_says_so() -> None:
    splitter = ThoughtSplitter(*THINK, begun=False)
    assert splitter.feed("", Place.INSIDE) == []
    found = [*splitter.feed("Hm. ", Place.INSIDE), *splitter.feed("", Place.ANSWER)]
    found += splitter.feed("\nYes.", Place.ANSWER)
    assert [(piece.thought, piece.text) for piece in found] == [(True, "Hm."), (False, "Yes.")]


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_what_the_template_writes_before_the_answer_is_left_out(size: int) -> None:
    written = "Hm.</think>\n<|final|>\nYes."
    splitter = ThoughtSplitter(*THINK, begun=True, layout="<|final|>")
    found = [
        piece
        for at in range(0, len(written), size)
        for piece in splitter.feed(
            written[at : at + size],
            Place.INSIDE if at + size < 11 else Place.ENDING if at + size < 22 else Place.ANSWER,
        )
    ]
    assert "".join(piece.text for piece in found if not piece.thought) == "Yes."
    assert "".join(piece.text for piece in found if piece.thought) == "Hm."
