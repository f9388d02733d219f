"""The contract of all dialects: what a model of each writes is read, whole or in pieces, cut or broken."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from call_forms import FORMS, Form
from foredraft.errors import RequestError
from foredraft.sampling.constraint import compile_constraint
from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.deltas import Answer, ArgumentsDelta, collect
from foredraft.server.tools.dialect import ControlTokens
from foredraft.server.tools.history import template_messages
from foredraft.server.tools.offered import offered_grammar
from foredraft.testing import FakeTokenizer
from foredraft.types import Constraint
from matrix import matrix
from tool_cases import numbered

FIND = Tool(
    "find",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "deep": {"type": "object"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "exact": {"type": "boolean"},
            "most": {"type": ["number", "null"]},
        },
    },
)
NOW = Tool("now", parameters={"type": "object", "properties": {}, "additionalProperties": False})
TOOLS = [FIND, NOW]
DEEP = {"a": [1, {"b": "x, } ] y"}, None, -2.5e3], "c": {"d": True}}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("now", {}),
    ("find", {"city": "Oslo"}),
    ("find", {"city": "Zürich 🙂 日本\n\n  two lines\t", "days": 3}),
    ("find", {"days": -7, "exact": True, "most": None}),
    ("find", {"most": 1.5, "deep": DEEP, "tags": ["a", "b c", ""], "city": ""}),
    ("find", {"city": 'say "it" \\ {"name": "now"} [1, 2] (x=\'y\') 12 true'}),
    ("find", {"city": "</tool_call> <tool_call> </parameter> <function=now> </arg_value> ``` [TOOL_CALLS]"}),
    ("find", {"city": "<|tool_call|> <|channel|>final<|message|> <|call|> <end_function_call> <tool_call|>"}),
]
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
every_call = pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))


def read(form: Form, pieces: Iterable[str], *, limit: bool = False, tools: list[Tool] = TOOLS) -> Answer:
    parser = form.dialect.parser(tools, numbered())
    found = [delta for piece in pieces for delta in parser.feed(piece)]
    return collect([*found, *parser.finish(cut=limit)])


def made(answer: Answer) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


@every_form
@every_call
def test_a_call_is_read_however_it_is_cut(form: Form, call: tuple[str, dict[str, Any]]) -> None:
    text = form.write([call])
    whole = read(form, [text])
    assert (whole.text, made(whole)) == ("", [call])
    assert whole.calls[0].whole
    assert read(form, text) == whole, "a character at a time"
    for place in range(len(text)):
        assert read(form, [text[:place], text[place:]]) == whole, text[:place]


@matrix(strength=1, form=FORMS.values(), call=CALLS, ids={"form": [*FORMS]})
def test_a_call_that_ends_anywhere_shows_no_markup(form: Form, call: tuple[str, dict[str, Any]]) -> None:
    text = form.write([call])
    written = read(form, [text]).calls[0].arguments
    for place in range(len(text)):
        cut = read(form, [text[:place]], limit=True)
        assert cut == read(form, text[:place], limit=True)
        assert cut.text == ""
        for part in cut.calls:
            assert written.startswith(part.arguments)
            assert part.whole == (part.arguments == written), text[:place]


@matrix(strength=1, form=FORMS.values(), call=CALLS, ids={"form": [*FORMS]})
def test_what_an_answer_held_is_taken_back(form: Form, call: tuple[str, dict[str, Any]]) -> None:
    """Wherever it was cut: its calls, with a result for each, are a history."""
    text = form.write([CALLS[0], call])
    for place in range(len(text)):
        answer = read(form, [text[:place]], limit=True)
        calls = [
            {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
            for each in answer.calls
        ]
        results = [{"role": "tool", "tool_call_id": each.id, "content": "4"} for each in answer.calls]
        said = {"role": "assistant", "content": answer.text, **({"tool_calls": calls} if calls else {})}
        back = template_messages([{"role": "user", "content": "x"}, said, *results], form.dialect)
        given = [each for message in back for each in message.get("tool_calls", ())]
        assert len(given) == len(calls)
        assert all(isinstance(each["function"]["arguments"], dict) for each in given)


@every_form
def test_several_calls_with_text_around_them(form: Form) -> None:
    calls = CALLS[:5]
    text = form.say("Let me look.") + form.write(calls)
    for pieces in ([text], text):
        answer = read(form, pieces)
        assert made(answer) == calls
        assert answer.text == "Let me look."
        assert all(call.whole for call in answer.calls)
    if form.dialect.name in ("harmony", "llama3"):
        return  # a call ends the message
    answer = read(form, [text + form.say(" That was it.")])
    assert answer.text == "Let me look. That was it."
    assert made(answer) == calls


@every_form
def test_a_function_that_is_not_offered_is_text(form: Form) -> None:
    text = form.write([("launch", {"city": "Oslo"})])
    for pieces in ([text], text):
        answer = read(form, pieces)
        assert answer.calls == ()
        assert answer.text == text.removesuffix("<|call|>")


@every_form
@pytest.mark.parametrize(
    "text", ["", "Hello.", "a < b > c", "[1, 2] {x} (y)", '{"name": "Bob"}', "call: find", "`now()`", " \n"]
)
def test_plain_words_come_through(form: Form, text: str) -> None:
    if form.dialect.name == "harmony" and text.isspace():
        return  # between messages it is layout
    assert read(form, [text]) == read(form, text) == Answer(text, ())


@every_form
def test_a_marker_without_a_call_is_text(form: Form) -> None:
    marker = form.dialect.markers[0]
    text = f"The marker {marker} begins a call, so much is known."
    if form.dialect.name == "harmony":
        return  # every message has such a marker
    assert read(form, [text]) == read(form, text) == Answer(text, ())


@every_form
def test_arguments_stream(form: Form) -> None:
    text = form.write([("find", {"city": "a long name of a city"})])
    parser = form.dialect.parser(TOOLS)
    parser.feed(text[: text.index("long")])
    assert parser.feed("long name") == [ArgumentsDelta(0, "long name")]


@every_form
def test_a_call_that_breaks_is_not_whole(form: Form) -> None:
    text = form.write([("find", {"city": "Oslo", "days": 3})])
    at = text.index("3")
    for pieces in ([text[:at] + "\x00]}" + text[at + 1 :]], text[:at] + "\x00]}" + text[at + 1 :]):
        answer = read(form, pieces)
        if form.dialect.name not in ("qwen-coder", "glm"):  # there every value is a text
            assert not any(call.whole for call in answer.calls)


# --- what only some have -------------------------------------------------------------------------------

THOUGHTS = {
    "harmony": (
        "<|channel|>analysis<|message|>Add <|start|>them.<|end|><|start|>assistant"
        "<|channel|>commentary<|message|>Well. <|end|><|start|>assistant<|channel|>final<|message|>It is 4."
    ),
    "command": (
        "<|START_THINKING|>Add <|them.<|END_THINKING|><|START_RESPONSE|>Well. It is 4.<|END_RESPONSE|>"
    ),
    "gemma": "<|channel>thought\nAdd <|them.<channel|>Well. It is 4.",
}


@pytest.mark.parametrize("name", THOUGHTS)
@pytest.mark.parametrize("tools", [TOOLS, []], ids=["tools", "none"])
def test_what_the_model_thinks_is_not_its_text(name: str, tools: list[Tool]) -> None:
    form, text = FORMS[name], THOUGHTS[name].replace("<|start|>them", "<|them")
    assert form.dialect.always_read
    answer = read(form, [text], tools=tools)
    assert (answer.text, answer.reasoning.strip()) == ("Well. It is 4.", "Add <|them.")
    for place in range(len(text)):
        assert read(form, [text[:place], text[place:]], tools=tools) == answer
        cut = read(form, text[:place], tools=tools, limit=True)
        assert answer.text.startswith(cut.text)
        assert answer.reasoning.startswith(cut.reasoning)


HARMONY_CALLS = [
    "<|channel|>commentary to=functions.find <|constrain|>json<|message|>{}<|call|>",
    "<|channel|>analysis to=functions.find code<|message|>{}",
    "<|channel|>commentary to=functions.find json<|message|>\n{}<|call|>",
    " to=functions.find<|channel|>commentary json<|message|>{}<|call|>",
    "<|start|>assistant to=functions.find<|channel|>commentary <|constrain|>json<|message|>{}",
    "<|channel|>analysis<|message|>Hm.<|end|><|channel|>commentary to=functions.find code<|message|>{}",
    "<|channel|>final<|message|>Wait.<|channel|>commentary to=functions.find <|constrain|>json<|message|>{}",
]


@pytest.mark.parametrize("text", HARMONY_CALLS)
def test_harmony_names_the_function_in_several_places(text: str) -> None:
    for pieces in ([text], text):
        assert made(read(FORMS["harmony"], pieces)) == [("find", {})], text


@pytest.mark.parametrize(
    ("written", "schema", "value"),
    [
        ("12", {"type": "integer"}, 12),
        ("12", {"type": "string"}, "12"),
        ("12", {}, 12),
        ("12", {"type": ["string", "integer"]}, 12),
        ("twelve", {"type": "integer"}, "twelve"),
        ("12", {"type": "number"}, 12),
        ("True", {"type": "boolean"}, True),
        ("None", {"type": ["string", "null"]}, None),
        ("True", {}, "True"),
        ("[1, 2", {"type": "array"}, "[1, 2"),
        ('{"a": [1]}', {"$ref": "#/$defs/T"}, {"a": [1]}),
        ('{"a": [1]}', {"anyOf": [{"type": "object"}, {"type": "string"}]}, {"a": [1]}),
        ('"quoted"', {"type": "string"}, '"quoted"'),
        ("true", {"enum": ["true", "false"]}, "true"),
        ("NaN", {"type": "number"}, "NaN"),
        (" spaced ", {"type": "string"}, " spaced "),
    ],
)
@pytest.mark.parametrize("name", ["qwen-coder", "glm"])
def test_bare_values_get_their_types(name: str, written: str, schema: dict[str, Any], value: object) -> None:
    parameters = {"type": "object", "properties": {"v": schema}, "$defs": {"T": {"type": "object"}}}
    text = FORMS[name].write([("f", {"v": written})])
    for pieces in ([text], text):
        assert made(read(FORMS[name], pieces, tools=[Tool("f", parameters=parameters)])) == [
            ("f", {"v": value})
        ]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("find(city='it\\'s', days=3,)", {"city": "it's", "days": 3}),
        ('find(city="a\\n\\u00e9\\x41\\q")', {"city": "a\né" + "A\\q"}),
        ("find(tags=['a', \"b\"], deep={'x': None, \"y\": False})",
         {"tags": ["a", "b"], "deep": {"x": None, "y": False}}),
        ("find( days = -1.5e3 , exact = true )", {"days": -1500.0, "exact": True}),
        ("find(city='\\ud83d')", {"city": "\ud83d"}),
    ],
)  # fmt: skip
def test_values_in_python(written: str, value: dict[str, Any]) -> None:
    for pieces in ([f"[{written}]"], f"[{written}]", [f"```tool_code\n{written}\n```"]):
        assert made(read(FORMS["pythonic"], pieces)) == [("find", value)]


@pytest.mark.parametrize(
    "text", ["[find(city)]", "[find(x=y)]", "[find(3)]", "[find]", "[find(city=Oslo)]", "[1, find(city='x')]"]
)
def test_what_is_not_a_call_in_python(text: str) -> None:
    answer = read(FORMS["pythonic"], [text])
    assert answer == read(FORMS["pythonic"], text)
    assert not any(call.whole for call in answer.calls)


def test_a_value_in_gemmas_notation_may_be_bare() -> None:
    text = "<|tool_call>call:find{city:New York,days:3,exact:false,deep:{a:[x,1]}}<tool_call|>"
    wanted = {"city": "New York", "days": 3, "exact": False, "deep": {"a": ["x", 1]}}
    assert made(read(FORMS["gemma"], text)) == [("find", wanted)]


@pytest.mark.parametrize("closing", ["</tool_call>", ""])
def test_the_outer_tag_may_be_forgotten(closing: str) -> None:
    text = FORMS["qwen-coder"].write(RIGHT[1:2]).removeprefix("<tool_call>\n").removesuffix("</tool_call>")
    for pieces in ([f"So: {text}{closing}"], f"So: {text}{closing}"):
        answer = read(FORMS["qwen-coder"], pieces)
        assert (answer.text, made(answer)) == ("So: ", RIGHT[1:2])
    grammar = offered_grammar(FORMS["qwen-coder"].dialect, STRICT, ToolChoice("auto"), None, ControlTokens())
    assert lets_through("lark", grammar, f"So: {text}{closing}")
    assert not lets_through("lark", grammar, f"So: {text.replace('3', 'x')}{closing}")


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": ["string", "null"]}, ["x", None, "null and void"], []),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [3, None], ["x"]),
        ({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, ["a", None], ["c", 3]),
        ({"enum": ["a", 1, None]}, ["a", 1, None], ["b", 2]),
        ({"const": "x"}, ["x"], ["y"]),
        ({"$ref": "#/$defs/C"}, ["red"], ["blue"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd"]),
        ({"type": "array", "items": {"$ref": "#/$defs/C"}}, [["red"]], [["blue"], "red"]),
        ({}, ["x", 3, {"a": [1]}], []),
        ({"type": "string", "description": "d", "title": "t", "default": "x", "format": "odd"}, ["y"], []),
    ],
)
@pytest.mark.parametrize("name", ["qwen-coder", "glm"])
def test_a_bare_value_follows_its_schema(name: str, schema: Any, right: list[Any], wrong: list[Any]) -> None:
    parameters = {
        "type": "object",
        "properties": {"v": schema},
        "required": ["v"],
        "additionalProperties": False,
    }
    tool = Tool("f", parameters={**parameters, "$defs": {"C": {"enum": ["red"]}}}, strict=True)
    forced = FORMS[name].dialect.grammar([tool], REQUIRED)
    assert forced is not None
    for value in (*right, *wrong):
        text = FORMS[name].write([("f", {"v": value})])
        rest = text[len(forced.prefix) :]
        assert lets_through(forced.kind, forced.source, rest) == (value in right), value
        if value in right:
            assert made(read(FORMS[name], text, tools=[tool])) == [("f", {"v": value})]


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": ["string", "null"]}, ["x", None], [3]),
        ({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, ["a", None], ["c"]),
        ({"type": "array", "items": {"$ref": "#/$defs/C"}}, [["red", "red"], []], [["blue"], "red"]),
        ({"type": "object"}, [{}, {"a": ["x", {"b": 1}]}], ["x"]),
        ({}, ["x", 3, True, {"a": [1]}], []),
    ],
)
@pytest.mark.parametrize("name", ["gemma", "function-gemma"])
def test_a_value_in_gemmas_notation_follows_its_schema(
    name: str, schema: Any, right: list[Any], wrong: list[Any]
) -> None:
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    tool = Tool("f", parameters={**parameters, "$defs": {"C": {"enum": ["red"]}}}, strict=True)
    forced = FORMS[name].dialect.grammar([tool], REQUIRED)
    assert forced is not None
    for value in (*right, *wrong):
        rest = FORMS[name].write([("f", {"v": value})])[len(forced.prefix) :]
        assert lets_through(forced.kind, forced.source, rest) == (value in right), value


def test_arguments_that_refer_to_one_another() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}, "additionalProperties": False}
    parameters = {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}, "$defs": {"N": node}}
    tool = Tool("f", parameters={**parameters, "required": ["n"], "additionalProperties": False}, strict=True)
    call: tuple[str, dict[str, Any]] = ("f", {"n": {"next": {"next": {}}}})
    for name in ("qwen-coder", "glm", "gemma", "function-gemma", "lfm"):
        forced = FORMS[name].dialect.grammar([tool], REQUIRED)
        assert forced is not None
        for wanted, right in ((call, True), (("f", {"n": {"next": 3}}), False)):
            text = FORMS[name].write([wanted]).replace("'", '"')[len(forced.prefix) :]
            assert lets_through(forced.kind, forced.source, text) == right, (name, wanted)


@pytest.mark.parametrize("name", ["qwen-coder", "glm", "gemma", "function-gemma"])
def test_what_a_grammar_cannot_hold_to_is_refused_where_it_is_strict(name: str) -> None:
    parameters = {"type": "object", "properties": {"v": {"type": "string", "pattern": "^a+$"}}}
    dialect = FORMS[name].dialect
    assert dialect.grammar([Tool("f", parameters=parameters)], REQUIRED)
    with pytest.raises(RequestError, match="function 'f' cannot be enforced in the form"):
        dialect.grammar([Tool("f", parameters=parameters, strict=True)], REQUIRED)


# --- what grammars let through -------------------------------------------------------------------------

STRICT = [
    Tool(
        "find",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"enum": ["C", "F"]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        strict=True,
    ),
    Tool(NOW.name, parameters=NOW.parameters, strict=True),
]
RIGHT: list[tuple[str, dict[str, Any]]] = [
    ("now", {}),
    ("find", {"city": "Oslo", "days": 3}),
    ("find", {"city": "São Paulo 🙂", "days": -3, "unit": "F"}),
    ("find", {"city": "x", "days": 0, "tags": ["a", "b"]}),
]
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("now", {"city": "x"}),
    ("find", {"city": "Oslo"}),
    ("find", {"city": "Oslo", "days": "three"}),
    ("find", {"city": "Oslo", "days": 3, "unit": "K"}),
    ("find", {"city": "Oslo", "days": 3, "more": "x"}),
    ("launch", {}),
]
REQUIRED, ONE = ToolChoice("required"), ToolChoice("required", parallel=False)
TOKENIZER = LLTokenizer("byte")


def lets_through(kind: str, source: str, text: str) -> bool:
    make = LLMatcher.grammar_from_json_schema if kind == "json_schema" else LLMatcher.grammar_from_lark
    matcher = LLMatcher(TOKENIZER, make(source))
    assert not matcher.is_error(), matcher.get_error()
    tokens = TOKENIZER.tokenize_str(text)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def forced_lets_through(form: Form, choice: ToolChoice, calls: list[tuple[str, dict[str, Any]]]) -> bool:
    """Whether the grammar of a forced answer allows these calls; an end token stands for `<|call|>`."""
    forced = form.dialect.grammar(STRICT, choice)
    assert forced is not None
    text = form.write(calls).removesuffix("<|call|>")
    text = text.removeprefix("<|python_tag|>").removeprefix("```tool_code\n").removesuffix("\n```")
    if form.dialect.name == "pythonic":
        text = form.write(calls)[len("```tool_code\n") : -len("\n```")].replace("'", '"')
    if form.dialect.name == "lfm":
        text = text.replace("'", '"')
    return text.startswith(forced.prefix) and lets_through(
        forced.kind, forced.source, text[len(forced.prefix) :]
    )


@every_form
def test_forced_calls_follow_their_schemas(form: Form) -> None:
    for call in RIGHT:
        assert forced_lets_through(form, REQUIRED, [call]), call
        assert forced_lets_through(form, ONE, [call]), call
        assert forced_lets_through(form, ToolChoice("function", call[0]), [call]), call
    for call in WRONG:
        assert not forced_lets_through(form, REQUIRED, [call]), call
    assert not forced_lets_through(form, ToolChoice("function", "now"), [RIGHT[1]])


@every_form
def test_several_forced_calls(form: Form) -> None:
    assert forced_lets_through(form, REQUIRED, RIGHT) == (not form.dialect.one_call_a_message)
    assert not forced_lets_through(form, ONE, RIGHT[:2])


@every_form
def test_the_prefix_of_a_forced_call_shows_nothing(form: Form) -> None:
    forced = form.dialect.grammar(STRICT, ToolChoice("function", "find"))
    assert forced is not None
    parser = form.dialect.parser(STRICT)
    assert parser.feed(forced.prefix) == []
    assert parser.finish(cut=True) == []


@every_form
@pytest.mark.parametrize("before", ["", "Let me look."])
def test_strict_calls_that_are_offered_follow_their_schemas(form: Form, before: str) -> None:
    grammar = offered_grammar(form.dialect, STRICT, ToolChoice("auto"), None, ControlTokens())
    said = form.say(before) if before else ""
    assert lets_through("lark", grammar, "Any words. <tool [TOOL 1 < 2\n")
    for call, right in [*((call, True) for call in RIGHT), *((call, False) for call in WRONG[:-1])]:
        text = form.write([call]).removesuffix("<|call|>")
        if form.dialect.name in ("pythonic", "lfm"):
            text = text.replace("'", '"')
        assert lets_through("lark", grammar, said + text) == right, call


class ControlTokenizer(FakeTokenizer):
    """Bytes, the end, and control tokens without text."""

    def __init__(self, count: int) -> None:
        super().__init__(258 + count)
        self.vocab_size = 258 + count

    def token_bytes(self, token: int) -> bytes:
        return b"" if token > 255 else bytes([token])


@every_form
def test_markers_that_are_control_tokens(form: Form) -> None:
    """The same, where a vocabulary has the markers as tokens that have no text."""
    markers = {marker: 258 + place for place, marker in enumerate(form.dialect.markers)}
    tokenizer = ControlTokenizer(len(markers))
    control = ControlTokens(markers)
    grammar = offered_grammar(form.dialect, STRICT, ToolChoice("auto"), None, control)
    forced = form.dialect.grammar(STRICT, REQUIRED, control)
    assert forced is not None
    for call in RIGHT:
        text = form.write([call]).removesuffix("<|call|>")
        if form.dialect.name in ("pythonic", "lfm"):
            text = text.replace("'", '"')
        assert allows(tokenizer, Constraint("grammar", grammar), spelled(form.say("So.") + text, markers))
        if text.startswith(forced.prefix) and form.dialect.name not in ("llama3", "pythonic"):
            rest = spelled(text[len(forced.prefix) :], markers)
            assert allows(tokenizer, Constraint(forced.kind, forced.source), rest), call


def spelled(text: str, markers: dict[str, int]) -> list[int]:
    parts = re.split(f"({'|'.join(map(re.escape, sorted(markers, key=len, reverse=True)))})", text)
    return [token for part in parts for token in ([markers[part]] if part in markers else part.encode())]


def allows(tokenizer: FakeTokenizer, constraint: Constraint, tokens: list[int]) -> bool:
    guide = compile_constraint(constraint, tokenizer)
    for token in tokens:
        if not guide.allows(token):
            return False
        guide.advance([token])
    return guide.complete or guide.allows(256)


# --- anything ------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12).filter(
    lambda text: "\r" not in text
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "city": texts,
        "days": st.integers(),
        "deep": st.dictionaries(
            st.from_regex(r"[a-z]{1,5}", fullmatch=True),
            st.recursive(st.none() | st.booleans() | st.integers() | texts, st.lists, max_leaves=4),
            max_size=3,
        ),
        "exact": st.booleans(),
    },
)


@given(st.sampled_from(sorted(FORMS)), arguments, st.lists(st.integers(0, 300), max_size=6))
def test_any_arguments(name: str, wanted: dict[str, Any], cuts: list[int]) -> None:
    form = FORMS[name]
    text = form.write([("find", wanted)])
    edges = [0, *sorted(at % (len(text) + 1) for at in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(edges)]
    assert made(read(form, pieces)) == [("find", wanted)]
