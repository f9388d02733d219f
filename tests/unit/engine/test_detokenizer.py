"""Tokens to text: the same however the text is cut into tokens, and never shown further than is certain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from foredraft.engine.detokenizer import StopString, TextStream
from foredraft.testing import FakeTokenizer

LETTERS = "abé模👩"


class Pieces(FakeTokenizer):
    """Token i stands for `pieces[i]`."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__()
        self.pieces = pieces

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """`data` in pieces, cut at these places (taken modulo its length)."""
    edges = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def stream(pieces: Sequence[bytes], stop: Sequence[str] = ()) -> list[str]:
    """What is shown after each token and at the end, fed until a stop string is complete."""
    text = TextStream(Pieces(pieces), stop)
    shown: list[str] = []
    for token in range(len(pieces)):
        shown.append(text.feed(token))
        if text.stopped:
            break
    return [*shown, text.flush()]


def until_stop(text: str, stop: Sequence[str]) -> str:
    """The text before the stop string that is complete first (of two, the one that begins first)."""
    ends = [(text.find(word) + len(word), text.find(word)) for word in stop if word in text]
    return text[: min(ends)[1]] if ends else text


texts = st.text(LETTERS, max_size=30)
cuts = st.lists(st.integers(0, 200), max_size=30)


def apart(stop: list[str]) -> bool:
    """No stop string is part of another."""
    return not any(a in b for i, a in enumerate(stop) for j, b in enumerate(stop) if i != j)


stops = st.lists(st.text("abé", min_size=1, max_size=4), max_size=3).filter(apart)


@given(data=st.one_of(texts.map(str.encode), st.binary(max_size=30)), cuts=cuts)
@example(data="👩".encode(), cuts=[1, 2, 3])
@example(data=b"\xe2\x82a\xf0\x9f", cuts=[1, 2, 3, 4])
def test_text_does_not_depend_on_how_bytes_fall_into_tokens(data: bytes, cuts: list[int]) -> None:
    assert "".join(stream(cut(data, cuts))) == data.decode("utf-8", "replace")


@given(text=texts, cuts=cuts)
def test_half_a_character_is_never_shown(text: str, cuts: list[int]) -> None:
    assert not any("�" in shown for shown in stream(cut(text.encode(), cuts)))


@given(text=st.text("abé", max_size=30), cuts=cuts, stop=stops)
def test_the_text_ends_before_the_first_stop_string(text: str, cuts: list[int], stop: list[str]) -> None:
    pieces = cut(text.encode(), cuts)
    expected = until_stop(text, stop)
    so_far = ""
    for shown in stream(pieces, stop):
        so_far += shown
        assert expected.startswith(so_far), "what was shown cannot be taken back"
    assert so_far == expected


@given(text=st.text("ab", max_size=40), cuts=cuts, string=st.text("ab", min_size=1, max_size=8))
def test_a_stop_string_is_found_where_it_is_and_its_beginning_at_the_end(
    text: str, cuts: list[int], string: str
) -> None:
    """Strings that repeat themselves: where one attempt fails, another is under way."""
    found, length = StopString(string), 0
    for piece in cut(text.encode(), cuts):
        end = found.feed(piece.decode())
        if end is not None:
            assert length + end == text.find(string) + len(string)
            return
        length += len(piece)
        begun = [n for n in range(len(string)) if text[:length].endswith(string[:n])]
        assert found.matched == begun[-1]
    assert string not in text


def test_what_is_nearly_a_stop_string_all_along_costs_no_more_than_other_text() -> None:
    """Looking through what was held back again with every token took minutes for these thousand."""

    class Counted(str):
        looks = 0
        __slots__ = ()

        def __getitem__(self, place: object) -> str:
            Counted.looks += 1
            return str.__getitem__(self, place)  # type: ignore[index]

    stops = [Counted("ab" * 2000 + str(number)) for number in range(16)]
    shown = stream([b"abab"] * 1000, stops)
    assert "".join(shown) == "abab" * 1000
    assert Counted.looks < 16 * 4000 * 10


def test_stop_strings_within_one_another_do_not_depend_on_the_tokens() -> None:
    stop = ("abc", "b")
    assert "".join(stream([b"a", b"b", b"c"], stop)) == "".join(stream([b"abc"], stop))


def test_a_stop_string_may_lie_across_many_tokens() -> None:
    shown = stream([b"one ", b"E", b"N", b"", b"D", b" two"], ["END"])
    assert shown == ["one ", "", "", "", "", ""]


def test_what_might_become_a_stop_string_is_shown_once_it_did_not() -> None:
    assert stream([b"x##", b"#", b"y"], ["###!"]) == ["x", "", "###y", ""]


def test_only_as_much_as_could_matter_is_held_back() -> None:
    assert stream([b"aab"], ["abab"]) == ["a", "ab"]
    assert stream([b"xyz"], ["abab"]) == ["xyz", ""]


def test_what_is_held_back_is_shown_at_the_end() -> None:
    assert stream([b"see you EN"], ["END"]) == ["see you ", "EN"]
    assert stream(["👩".encode()[:3]]) == ["", "�"]


def test_a_stop_string_may_be_completed_by_the_end_of_a_broken_character() -> None:
    assert stream([b"ab", b"\xf0"], ["b�"]) == ["a", "", ""]


def test_tokens_without_text_change_nothing() -> None:
    assert stream([b"a", b"", b"b"]) == ["a", "", "b", ""]
