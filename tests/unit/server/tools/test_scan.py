"""The scanner agrees with Python's own parser, at every character and however the text is cut."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foredraft.server.tools.scan import ObjectScanner, Run, escape_controls

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)
objects = st.dictionaries(st.text(max_size=5), values, max_size=4)
near_json = st.lists(
    st.sampled_from(
        [*'{}[]:,"\\ \n019-+.eEux', '{"a":', '"b"', "true", "null", "fals", "1.5e-3", "\\u00e9", '\\"', "é"]
    ),
    max_size=14,
).map(lambda parts: "{" + "".join(parts))


def scan(text: str, width: int = 10_000) -> tuple[ObjectScanner, int]:
    """Feed `text` in pieces of this width, and say how many characters were taken."""
    scanner = ObjectScanner()
    taken = 0
    for start in range(0, len(text), width):
        piece = text[start : start + width]
        at = 0
        while at < len(piece):
            end = scanner.step(piece, at)
            if end == at:
                return scanner, taken
            taken += end - at
            at = end
    return scanner, taken


def refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def python_reads_object(text: str) -> bool:
    try:
        value: Any = json.loads(text, strict=False, parse_constant=refuse)
    except ValueError:
        return False
    return isinstance(value, dict)


@given(objects, st.booleans(), st.integers(1, 7))
def test_takes_every_object_whole(value: dict[str, Any], ascii_only: bool, width: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    scanner, taken = scan(text, width)
    assert scanner.complete
    assert taken == len(text)
    assert scanner.depth == 0


@given(near_json)
@example('{"a":01}')
@example('{"a":1.}')
@example('{"a":-}')
@example('{"a":[1,]}')
@example('{"a":1,}')
@example('{"a" "b"}')
@example('{"a":tru}')
@example('{"a":"\\u12g4"}')
@example('{"a":"\\x"}')
@example('{"a":]}')
@example('{"a":[}]')
@example('{"a":1 2}')
@example("{} ")
@example("{}\n1")
@example('{,"a":1}')
@example('{"a":\u0663}')
@example('{"a":\xa01}')
def test_agrees_with_pythons_parser(text: str) -> None:
    scanner, taken = scan(text)
    assert scanner.complete == python_reads_object(text[:taken])
    if taken == len(text):
        assert scanner.complete == python_reads_object(text)
    else:
        assert scanner.failed or scanner.complete
        blank = not text[taken:].strip(" \t\n\r")  # which may follow an object, but is not taken
        assert python_reads_object(text) == (scanner.complete and blank)


@given(near_json, st.integers(1, 3))
def test_stops_at_the_same_character_however_the_text_is_cut(text: str, width: int) -> None:
    whole, taken = scan(text)
    cut, cut_taken = scan(text, width)
    assert (cut_taken, cut.complete, cut.depth) == (taken, whole.complete, whole.depth)


@given(objects, st.integers(0))
def test_the_beginning_of_an_object_is_taken_whole(value: dict[str, Any], cut: int) -> None:
    text = json.dumps(value)
    length = cut % len(text)
    scanner, taken = scan(text[:length])
    assert taken == length
    assert not scanner.complete
    assert not scanner.failed


@pytest.mark.parametrize("text", ["[1]", '"a"', "1", "x", "}", "true"])
def test_only_an_object(text: str) -> None:
    scanner, taken = scan(text)
    assert scanner.failed
    assert taken == 0


def test_says_what_each_run_is() -> None:
    scanner = ObjectScanner()
    text = '{"k": ["s", 1]}'
    runs: list[tuple[str, Run, int]] = []
    at = 0
    while at < len(text):
        end = scanner.step(text, at)
        runs.append((text[at:end], scanner.run, scanner.depth))
        at = end
    assert runs == [
        ("{", Run.PUNCTUATION, 1),
        ('"', Run.KEY, 1),
        ("k", Run.KEY, 1),
        ('"', Run.KEY, 1),
        (":", Run.PUNCTUATION, 1),
        (" ", Run.SPACE, 1),
        ("[", Run.PUNCTUATION, 2),
        ('"', Run.STRING, 2),
        ("s", Run.STRING, 2),
        ('"', Run.STRING, 2),
        (",", Run.PUNCTUATION, 2),
        (" ", Run.SPACE, 2),
        ("1", Run.SCALAR, 2),
        ("]", Run.PUNCTUATION, 1),
        ("}", Run.PUNCTUATION, 0),
    ]


@given(st.text())
def test_escaped_controls_read_back(text: str) -> None:
    quoted = '"' + escape_controls(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
    assert json.loads(quoted) == text


def test_small_pieces_take_no_more_steps_than_characters() -> None:
    """Counts the characters looked at: linear in the length, however many pieces there are."""
    text = json.dumps({"a": ["word " * 40] * 100, "b": "x" * 20_000})
    scanner = ObjectScanner()
    steps = 0
    for start in range(0, len(text), 5):
        piece = text[start : start + 5]
        at = 0
        while at < len(piece):
            at = scanner.step(piece, at)
            steps += 1
    assert scanner.complete
    assert steps <= len(text)
