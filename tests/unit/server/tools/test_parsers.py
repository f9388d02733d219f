"""What holds for every dialect: cutting changes nothing, and nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foredraft.server.tools.deltas import ArgumentsDelta, CallStart, TextDelta, collect
from foredraft.server.tools.dialect import Dialect, new_call_id
from foredraft.server.tools.hermes import HERMES
from foredraft.server.tools.llama3 import LLAMA3
from foredraft.server.tools.mistral import MISTRAL, MISTRAL_NAMED
from tool_cases import NAMES, called, cut, deltas, numbered, read, tools_named

DIALECTS: list[Dialect] = [HERMES, LLAMA3, MISTRAL, MISTRAL_NAMED]
IDS = ["hermes", "llama3", "mistral", "mistral-named"]
dialects = st.sampled_from(DIALECTS)
cuts = st.lists(st.integers(0, 400), max_size=40)

# Pieces out of which answers are made that are nearly calls, of any dialect.
PIECES = [
    "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<tool", "[TOOL_",
    '{"name": "add", "arguments": {"a": 1}}', '{"parameters": {"b": [true, "}"]}, "name": "now"}',
    '{"name": "add", "arguments": "{\\"a\\": \\"\\\\u00e9\\ud83d\\ude00\\"}"}',
    '{"name": "other", "arguments": {}}', '{"name": "add", "arguments": ',
    '"{\\"a\\": ', '\\"x', "\\ud83d", "\\n",
    "{", "}", "[", "]", ",", ";", ":", '"',
    '"name"', '"add"', "add", "now", "x", "\n", " ", "1", "null", "é😀",
]  # fmt: skip
near_calls = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
objects = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=12),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
plain_texts = st.text().filter(lambda text: "<" not in text and "[" not in text and "{" not in text)


def every_form(dialect: Dialect, name: str, arguments: str) -> list[str]:
    """An answer that is one call, in each way that the dialect knows."""
    as_object = f'{{"name": "{name}", "arguments": {arguments}}}'
    swapped = f'{{"parameters": {arguments}, "name": "{name}"}}'
    quoted = f'{{"name": "{name}", "arguments": {json.dumps(arguments)}}}'
    bodies = [as_object, swapped, quoted]
    if dialect is HERMES:
        return [f"<tool_call>\n{body}\n</tool_call>" for body in bodies]
    if dialect is LLAMA3:
        return [*bodies, *(f"<|python_tag|>{body}" for body in bodies)]
    named = [f"[TOOL_CALLS]{name}{head}{arguments}" for head in ("[ARGS]", "[CALL_ID]a1B2c3D4e[ARGS]", "")]
    return [*(f"[TOOL_CALLS] [{body}]" for body in bodies), *named]


@given(dialects, near_calls, cuts)
@example(HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": \\ud83d x"}', [40, 45, 50, 51])
@example(HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": \\"\\ud83d\\u0041 x"}', [44, 51, 55, 60])
def test_cutting_the_stream_changes_nothing(dialect: Dialect, text: str, places: list[int]) -> None:
    assert collect(deltas(dialect, cut(text, places))) == read(dialect, text)
    assert collect(deltas(dialect, text)) == read(dialect, text)


@given(dialects, near_calls, cuts)
def test_without_a_call_the_text_is_the_answer(dialect: Dialect, text: str, places: list[int]) -> None:
    answer = collect(deltas(dialect, cut(text, places), names=()))
    assert answer.calls == ()
    assert answer.text == text


@given(dialects, st.text(), cuts)
def test_any_text_comes_through(dialect: Dialect, text: str, places: list[int]) -> None:
    assert collect(deltas(dialect, cut(text, places))).text == text


@given(dialects, near_calls)
def test_characters_stay_in_order(dialect: Dialect, text: str) -> None:
    """Text that is given beside calls is the answer with pieces left out, never rearranged."""
    rest = iter(text)
    assert all(char in rest for char in read(dialect, text).text)


@given(dialects, plain_texts)
def test_plain_text_streams_at_once(dialect: Dialect, text: str) -> None:
    """Only white space at the start may wait, for the text that follows it."""
    parser = dialect.parser(tools_named())
    shown = collect(parser.feed(text)).text
    assert shown == (text if text.strip() else "")
    assert shown + collect(parser.finish()).text == text


@given(dialects, st.sampled_from(NAMES), objects, st.booleans(), st.data())
def test_a_call_is_read_in_every_form(
    dialect: Dialect, name: str, arguments: dict[str, Any], ascii_only: bool, data: st.DataObject
) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    text = data.draw(st.sampled_from(every_form(dialect, name, written)))
    answer = collect(deltas(dialect, cut(text, data.draw(cuts))))
    assert answer.text == ""
    assert [call.name for call in answer.calls] == [name]
    assert json.loads(answer.calls[0].arguments) == arguments


@given(dialects, st.sampled_from(NAMES), objects, st.data())
def test_an_answer_that_breaks_off_loses_nothing(
    dialect: Dialect, name: str, arguments: dict[str, Any], data: st.DataObject
) -> None:
    """A prefix of the arguments if the call was announced; else the text, which the token limit hides."""
    written = json.dumps(arguments)
    whole = every_form(dialect, name, written)[0]
    begin = whole.index('"arguments": ') + len('"arguments": ')
    text = whole[: data.draw(st.integers(0, len(whole)))]
    answer = read(dialect, text)
    if len(text) > begin:
        assert answer.text == ""
        assert called(answer) == [(name, text[begin:][: len(written)])]
        assert answer.calls[0].whole == (len(text) >= begin + len(written))
    else:
        assert answer.calls == ()
        assert answer.text == text
    cut_short = collect(deltas(dialect, [text], limit=True))
    assert (cut_short.text, cut_short.calls) == ("", answer.calls)


@pytest.mark.parametrize("dialect", DIALECTS, ids=IDS)
def test_arguments_stream_as_they_come(dialect: Dialect) -> None:
    text = every_form(dialect, "get_weather", '{"city": "Reykjavík"}')[0]
    before = text[: text.index("Rey")]
    parser = dialect.parser(tools_named(), numbered())
    assert parser.feed(before) == [CallStart(0, "id0", "get_weather"), ArgumentsDelta(0, '{"city": "')]
    assert parser.feed("Reyk") == [ArgumentsDelta(0, "Reyk")]
    assert parser.feed("javík") == [ArgumentsDelta(0, "javík")]
    assert parser.feed('"}') == [ArgumentsDelta(0, '"}')]


@pytest.mark.parametrize("dialect", DIALECTS, ids=IDS)
def test_text_around_a_marker_streams_at_once(dialect: Dialect) -> None:
    marker = dialect.markers[0]
    parser = dialect.parser(tools_named())
    assert parser.feed(f"Hello {marker[:3]}") == [TextDelta("Hello ")]
    assert parser.feed("!") == [TextDelta(f"{marker[:3]}!")]
    assert parser.feed(" more") == [TextDelta(" more")]
    assert parser.finish() == []


@pytest.mark.parametrize("dialect", DIALECTS, ids=IDS)
@pytest.mark.parametrize(
    "body",
    [
        '{"name": "unknown", "arguments": {}}',
        '{"name": 7, "arguments": {}}',
        '{"name": ' + "9" * 5000 + "}",
        '{"name": "add", "arguments": [1]}',
        '{"name": "add", "arguments": 12}',
        '{"name": "add", "arguments": "Paris"}',
        '{"name": "add", "name": "add", "arguments": {}}',
        '{"name": "add", "note": "hm", "arguments": {}}',
        '{"arguments": {"a": 1}}',
        '{"arguments": {"a": 1}, "parameters": {}, "name": "add"}',
        "{name: add}",
        "{}",
        '{"name": "add"',
    ],
)
def test_what_is_not_a_call_is_text(dialect: Dialect, body: str) -> None:
    marker = "" if dialect is LLAMA3 else dialect.markers[0]
    text = f" {marker} {body} and on"
    assert read(dialect, text).calls == ()
    assert read(dialect, text).text == text


@pytest.mark.parametrize("dialect", DIALECTS, ids=IDS)
@pytest.mark.parametrize(
    "absent", ['{"name": "now"}', '{"name": "now", "arguments": null}', '{"name": "now", "arguments": ""}']
)
def test_no_arguments_are_an_empty_object(dialect: Dialect, absent: str) -> None:
    answer = read(dialect, f"{dialect.markers[0]}{absent}")
    assert called(answer) == [("now", "{}")]


@pytest.mark.parametrize("dialect", DIALECTS, ids=IDS)
def test_a_call_that_breaks_keeps_what_was_shown_and_gives_back_the_rest(dialect: Dialect) -> None:
    answer = read(dialect, dialect.markers[0] + '{"name": "add", "arguments": {"a": 1, oops}} so')
    assert called(answer) == [("add", '{"a": 1, ')]
    assert answer.text == "oops}} so"


@pytest.mark.parametrize(
    ("inside", "arguments", "text"),
    [
        (r"{\"a\": x\"}", '{"a": ', r'x\"}" so'),
        (r"{\"a\": \u0041}", '{"a": ', r'\u0041}" so'),
        (r"{\"a\": \ud83d\u0041}", '{"a": ', r'\ud83d\u0041}" so'),
        (r"{\"a\": \ud83dx}", '{"a": ', r'\ud83dx}" so'),
        (r"{\"a\": \"\ud83d\", x}", r'{"a": "\ud83d", ', 'x}" so'),
        (r"{\"a\": \u00zz}", '{"a": ', r'\u00zz}" so'),
        (r"{\"a\": 1} x", '{"a": 1}', 'x" so'),
        (r"{\"a\": 1", '{"a": 1', '" so'),
    ],
)
def test_broken_arguments_inside_a_string(inside: str, arguments: str, text: str) -> None:
    written = f'<tool_call>{{"name": "add", "arguments": "{inside}" so'
    for pieces in ([written], list(written)):
        answer = collect(deltas(HERMES, pieces))
        assert called(answer) == [("add", arguments)]
        assert answer.text == text


@pytest.mark.parametrize("body", ['{"arguments": {"a": 1}}', '{"name": "other"}', "{}", '{"note":'])
def test_what_cannot_become_a_call_any_more_is_not_held_back(body: str) -> None:
    text = f"<tool_call>{body}"
    parser = HERMES.parser(tools_named())
    assert collect(parser.feed(text)).text == text


def test_raw_newlines_in_arguments_become_valid_json() -> None:
    answer = read(HERMES, '<tool_call>{"name": "add", "arguments": {"code": "a\n\tb"}}</tool_call>')
    assert json.loads(answer.calls[0].arguments) == {"code": "a\n\tb"}
    named = read(MISTRAL, '[TOOL_CALLS]add[ARGS]{"code": "a\nb"}')
    assert json.loads(named.calls[0].arguments) == {"code": "a\nb"}
    single_escaped = read(HERMES, '<tool_call>{"name": "add", "arguments": "{\\"code\\": \\"a\\nb\\"}"}')
    assert json.loads(single_escaped.calls[0].arguments) == {"code": "a\nb"}


def test_half_a_surrogate_pair_stays_valid_unicode() -> None:
    answer = read(HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": \\"\\ud83d\\"}"}</tool_call>')
    assert answer.calls[0].arguments.encode("utf-8") == b'{"a": "\\ud83d"}'


def test_call_ids_have_openais_form() -> None:
    ids = {new_call_id() for _ in range(50)}
    assert len(ids) == 50
    for value in ids:
        head, _, digits = value.partition("_")
        assert head == "call"
        assert len(digits) == 24
        assert int(digits, 16) >= 0


def test_the_id_factory_is_asked_once_a_call() -> None:
    found = deltas(HERMES, ['<tool_call>{"name": "now"}</tool_call>' * 3])
    assert [delta for delta in found if isinstance(delta, CallStart)] == [
        CallStart(index, f"id{index}", "now") for index in range(3)
    ]
