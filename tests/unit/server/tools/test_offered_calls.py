"""Calls that a model may make: text is free, and what is read as a strict call follows its schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft import Engine, SamplingParams
from foredraft.drafters.grammar import GrammarDrafter
from foredraft.protocols import Drafter, Model
from foredraft.sampling.constraint import compile_constraint
from foredraft.server.openai.tool_use import tool_use
from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.deltas import collect
from foredraft.server.tools.dialect import ControlTokens, Dialect
from foredraft.server.tools.hermes import HERMES
from foredraft.server.tools.llama3 import LLAMA3
from foredraft.server.tools.mistral import MISTRAL, MISTRAL_NAMED
from foredraft.server.tools.offered import offered_grammar
from foredraft.templates.traits import TemplateTraits
from foredraft.testing import (
    FakeModel,
    FakeTokenizer,
    ScriptedDrafter,
    assert_lossless,
    drafter_context,
    markov_logits,
)
from foredraft.types import Constraint, FinishEvent, FinishReason, Logits, TokenEvent
from tool_cases import called, deltas

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = (Tool("weather", "", CITY, strict=True), Tool("loose", "", CITY))
AUTO, ONE = ToolChoice("auto"), ToolChoice("auto", parallel=False)
RIGHT, WRONG = ("weather", '{"city": "Nuuk"}'), ("weather", '{"city": 3}')
LOOSE = ("loose", '{"any": [1]}')
END = 256
MARK, OTHER = 257, 258

dialects = pytest.mark.parametrize(
    "dialect", [HERMES, LLAMA3, MISTRAL, MISTRAL_NAMED], ids=["hermes", "llama3", "mistral", "mistral-named"]
)


class ControlTokenizer(FakeTokenizer):
    """Bytes, the end, and two control tokens without text."""

    def __init__(self) -> None:
        super().__init__(258)
        self.vocab_size = 259

    def token_bytes(self, token: int) -> bytes:
        return b"" if token > 255 else bytes([token])


TOKENIZER = ControlTokenizer()


def write(dialect: Dialect, call: tuple[str, str]) -> str:
    """One call as a model of this dialect writes it after its first marker."""
    name, arguments = call
    if dialect is HERMES:
        return f'\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    if dialect is LLAMA3:
        return f'{{"name": "{name}", "parameters": {arguments}}}'
    if dialect is MISTRAL_NAMED:
        return f"{name}[ARGS]{arguments}"
    return f'[{{"name": "{name}", "arguments": {arguments}}}]'


def allows(grammar: str, *pieces: str | int) -> bool:
    """Whether an answer of these texts and tokens is one that the grammar lets through."""
    guide = compile_constraint(Constraint("grammar", grammar), TOKENIZER)
    tokens = [token for piece in pieces for token in ([piece] if isinstance(piece, int) else piece.encode())]
    for token in tokens:
        if not guide.allows(token):
            return False
        guide.advance([token])
    return guide.complete or guide.allows(END)


@dialects
@pytest.mark.parametrize("choice", [AUTO, ONE])
@pytest.mark.parametrize(
    "text", ["", "Hello, wörld 🙂\n\n", '{"city": 3}', "{", "<tool", "[TOOL", "a [1] <b>", '{"names": "x"}']
)
def test_text_is_free(dialect: Dialect, choice: ToolChoice, text: str) -> None:
    grammar = offered_grammar(dialect, TOOLS, choice)
    assert allows(grammar, text)
    with_control = offered_grammar(
        dialect, TOOLS, choice, None, ControlTokens({dialect.markers[0]: MARK}, (OTHER,))
    )
    assert allows(with_control, text)
    assert allows(with_control, text, OTHER, "x", OTHER, OTHER, text)


@dialects
@pytest.mark.parametrize("choice", [AUTO, ONE])
@pytest.mark.parametrize("before", ["", "Let me look.\n"])
@pytest.mark.parametrize("marker", ["text", "control", "text of a control token"])
@pytest.mark.parametrize(("call", "allowed"), [(RIGHT, True), (WRONG, False), (LOOSE, True)])
def test_a_strict_call_follows_its_schema(
    dialect: Dialect, choice: ToolChoice, before: str, marker: str, call: tuple[str, str], allowed: bool
) -> None:
    text = dialect.markers[0]
    control = ControlTokens() if marker == "text" else ControlTokens({text: MARK}, (OTHER,))
    grammar = offered_grammar(dialect, TOOLS, choice, None, control)
    pieces = [before, MARK if marker == "control" else text, write(dialect, call)]
    assert allows(grammar, *pieces) == allowed
    answer = collect(deltas(dialect, [before, text, write(dialect, call)], ["weather", "loose"]))
    assert called(answer) == [call]
    assert answer.text.strip() == before.strip()


@dialects
def test_after_a_call_there_is_text_or_another_call(dialect: Dialect) -> None:
    marker = dialect.markers[0]
    right, wrong = (marker + write(dialect, call) for call in (RIGHT, WRONG))
    several, one = offered_grammar(dialect, TOOLS, AUTO), offered_grammar(dialect, TOOLS, ONE)
    more = not dialect.one_call_a_message
    assert allows(several, right, "\n") == allows(several, right, " and ", right, ".") == more
    assert not allows(several, right, wrong)
    assert not allows(one, right, right)
    assert not allows(one, right, " and more")


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (write(LLAMA3, RIGHT), True),
        ("\n " + write(LLAMA3, RIGHT), True),
        ('{\n  "name" : "weather", "parameters": {"city": "Nuuk"} }', True),
        (write(LLAMA3, WRONG), False),
        (write(LLAMA3, LOOSE), True),
        ('{"name": "Bob"}', False),
        ('{"type": "function", "name": "weather", "parameters": {}}', False),
        ('{"parameters": {}, "name": "weather"}', False),
        ('{"n\\u0061me": "weather", "parameters": {}}', False),
        ('So: {"name": "weather", "parameters": {}}', True),
        ('{"city": "Nuuk", "name": "x"}', True),
    ],
)
def test_a_bare_object_that_begins_like_a_call_is_one(text: str, allowed: bool) -> None:
    assert allows(offered_grammar(LLAMA3, TOOLS, AUTO), text) == allowed


FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}


@dialects
@pytest.mark.parametrize("choice", [AUTO, ONE])
def test_with_a_format_it_is_json_or_calls(dialect: Dialect, choice: ToolChoice) -> None:
    marker = dialect.markers[0]
    for control in (ControlTokens(), ControlTokens({marker: MARK}, (OTHER,))):
        grammar = offered_grammar(dialect, TOOLS, choice, FORM, control)
        written = control.markers.get(marker, marker)
        assert allows(grammar, '{"answer": 42}')
        assert allows(grammar, written, write(dialect, RIGHT))
        assert not allows(grammar, written, write(dialect, WRONG))
        assert not allows(grammar, "Hello")
        assert not allows(grammar, "")
        assert not allows(grammar, '{"answer": 42}', written, write(dialect, RIGHT))
        several = [written, write(dialect, RIGHT), "\n", written, write(dialect, RIGHT)]
        assert allows(grammar, *several) == (choice.parallel and not dialect.one_call_a_message)
    assert allows(offered_grammar(LLAMA3, TOOLS, choice, FORM), write(LLAMA3, RIGHT))


def test_a_schema_says_its_own_white_space() -> None:
    form = {**FORM, "x-guidance": {"whitespace_pattern": ""}}
    grammar = offered_grammar(HERMES, TOOLS, AUTO, form)
    assert allows(grammar, '{"answer":42}')
    assert not allows(grammar, '{"answer": 42}')


ALPHABET = ["<tool_call>", "</tool_call>", "\n", "{", "}", '"', "name", "weather", "x", ": ", "[", "3", ","]
LISTED = [*ALPHABET, *(write(HERMES, call) for call in (RIGHT, WRONG, LOOSE))]


@given(st.lists(st.sampled_from(LISTED), max_size=8))
def test_whatever_is_let_through_has_only_calls_that_follow_their_schemas(pieces: list[str]) -> None:
    text = "".join(pieces)
    answer = collect(deltas(HERMES, [text], ["weather", "loose"]))
    if allows(offered_grammar(HERMES, TOOLS, AUTO), text):
        assert WRONG not in called(answer)
        assert called(answer) or "<tool_call>" not in text
    elif "<tool_call>" not in text:
        raise AssertionError(f"{text!r} is only text")


class Tekken(ControlTokenizer):
    """A vocabulary in which `[TOOL_CALLS]` is a control token."""

    chat_template = "{{ tools }}[TOOL_CALLS]"
    template_traits = TemplateTraits(variables={"tools"})

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        if special and text == "[TOOL_CALLS]":
            return [MARK]
        return super().encode(text, special=special, add_bos=add_bos)


def calling() -> Model:
    """A model that writes noise, and calls often."""

    def logits(prefix: Sequence[int]) -> Logits:
        row = noise(prefix).copy()
        row[128:] -= 9.0
        row[MARK], row[END] = 4.0, 3.0
        return row

    noise = markov_logits(259, order=2, seed=3, scale=2.0)
    model = FakeModel(259, logits=logits)
    model.tokenizer = Tekken()
    return model


@pytest.mark.parametrize("choice", [AUTO, ONE])
@pytest.mark.parametrize("answer", [None, FORM])
def test_drafts_change_nothing(choice: ToolChoice, answer: dict[str, Any] | None) -> None:
    shape = {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}}
    functions = [{"name": name, "parameters": shape, "strict": True} for name in ("add", "weather")]
    tools = [{"type": "function", "function": function} for function in functions]
    use = tool_use(Tekken(), tools, "auto", parallel=choice.parallel)
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=80, constraint=use.constraint(answer))
    prompts = [use.encode([{"role": "user", "content": text}])[1].tokens for text in ("a", "hello")]

    def drafters(model: Model) -> list[Drafter]:
        return [GrammarDrafter(drafter_context(model).grammar), ScriptedDrafter(lambda seen: seen[-12:-4])]

    origins = assert_lossless(calling, drafters, prompts, params)
    assert origins.get("grammar"), "forced tokens were drafted"
    for prompt in prompts:
        reader = use.reader()
        assert reader is not None
        events = list(Engine(calling()).stream(prompt, params=params))
        found = collect(
            delta
            for event in events
            for delta in (reader.read(event) if isinstance(event, TokenEvent) else reader.end(event.text))
        )
        assert isinstance(events[-1], FinishEvent)
        whole = found.calls if events[-1].reason is FinishReason.STOP else found.calls[:-1]
        assert all(json.loads(call.arguments).get("n", 1) in (1, 2, 3) for call in whole)
        assert choice.parallel or len(found.calls) <= 1
