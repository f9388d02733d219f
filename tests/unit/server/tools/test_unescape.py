"""Escapes decoded a piece at a time, and surrogates that have no partner."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.server.tools.unescape import Unescaper


def unescape(inside: str) -> str:
    """Decode the inside of a JSON string, cut as the scanner cuts it."""
    decoder = Unescaper()
    shown = []
    at = 0
    while at < len(inside):
        end = at + 1
        if not decoder.escaping and inside[at] != "\\":
            end = inside.find("\\", at) if "\\" in inside[at:] else len(inside)
        shown.append(decoder.feed(inside[at:end]))
        at = end
    return "".join([*shown, decoder.flush()])


@given(st.text(), st.booleans())
def test_gives_what_was_quoted(text: str, ascii_only: bool) -> None:
    assert unescape(json.dumps(text, ensure_ascii=ascii_only)[1:-1]) == text


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        (r"\ud83d\ude00", "😀"),
        (r"\ud83d", r"\ud83d"),
        (r"\ude00", r"\ude00"),
        (r"\ud83dx", r"\ud83dx"),
        (r"\ud83d\n", "\\ud83d\n"),
        (r"\ud83d\ud83d\ude00", r"\ud83d😀"),
        (r"\ude00\ud83d", r"\ude00\ud83d"),
        (r"\/\b\f\t\"\\", '/\b\f\t"\\'),
    ],
)
def test_surrogates_and_short_escapes(inside: str, text: str) -> None:
    assert unescape(inside) == text
