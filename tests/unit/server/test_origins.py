"""Which characters of an answer a drafter proposed: the runs of each piece add up to its text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from call_forms import FORMS
from foredraft.engine.detokenizer import TextStream
from foredraft.server.openai.chat import ChoiceWriter
from foredraft.server.openai.origins import Origins, Runs
from foredraft.server.openai.tool_use import tool_use
from foredraft.server.tools.deltas import ReasoningDelta, TextDelta
from foredraft.server.tools.harmony import HARMONY
from foredraft.templates.traits import TemplateTraits
from foredraft.testing import FakeTokenizer
from foredraft.types import Event, FinishEvent, FinishReason, SpeculationStats, Timings, TokenEvent, Usage
from tool_cases import cut as pieces_of
from tool_cases import numbered, tools_named

STATS = SpeculationStats("off", False, "off", 0, None, None, None, {}, (), True, "")
SOURCES = ["target", "suffix", "recycle"]
cuts = st.lists(st.integers(0, 200), max_size=30)
sources = st.lists(st.sampled_from(SOURCES), min_size=1, max_size=8)
stops = st.lists(st.text("abé模", min_size=1, max_size=4), max_size=3)


class Pieces(FakeTokenizer):
    """Token i stands for `pieces[i]`; the texts in `control` are control tokens, behind those."""

    def __init__(self, pieces: Sequence[bytes], template: str | None = None, *control: str) -> None:
        super().__init__()
        self.pieces = [*pieces, *(b"" for _ in control)]
        self.vocab_size = len(self.pieces)
        self.end_tokens = frozenset()
        self.chat_template = template
        self.control = {text: len(pieces) + number for number, text in enumerate(control)}
        self.template_traits = TemplateTraits(variables={"tools"})

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        if special and text in self.control:
            return [self.control[text]]
        return super().encode(text, special=special, add_bos=add_bos)


def split(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(at % (len(data) + 1) for at in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def events_of(
    tokenizer: Pieces, tokens: Sequence[int], origins: Sequence[str], stop: Sequence[str]
) -> list[Event]:
    """What the engine tells of these tokens, whose origins repeat."""
    stream = TextStream(tokenizer, stop)
    events: list[Event] = []
    for place, token in enumerate(tokens):
        events.append(TokenEvent(1, token, stream.feed(token), origins[place % len(origins)]))
        if stream.stopped:
            break
    spent = Usage(1, 1, 0, 0, 0), Timings(1, 1.0, 1, 1.0, 0, 0), STATS
    return [*events, FinishEvent(1, FinishReason.STOP, stream.flush(), *spent)]


def written(tokenizer: Pieces, events: Sequence[Event], groups: Sequence[int]) -> list[dict[str, Any]]:
    """The choices for these events, that come in groups."""
    writer = ChoiceWriter(0, tool_use(tokenizer, None, None, parallel=True), origins=True)
    edges = [0, *sorted({1 + at % len(events) for at in groups} - {len(events)}), len(events)]
    return [choice for start, end in pairwise(edges) for choice in writer.write(events[start:end])]


def shown(choices: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Each shown character with its origin, from choices whose runs have to add up."""
    found: list[tuple[str, str]] = []
    for choice in choices:
        text = choice["delta"].get("content") or choice["delta"].get("reasoning_content") or ""
        assert ("origins" in choice) is bool(text)
        runs = choice.get("origins", [])
        assert sum(count for _, count in runs) == len(text)
        assert all(count > 0 for _, count in runs)
        assert all(one[0] != other[0] for one, other in pairwise(runs))
        found += zip(text, (origin for origin, count in runs for _ in range(count)), strict=True)
    return found


def by_character(events: Sequence[Event], tokenizer: Pieces) -> list[tuple[str, str]]:
    """Each character of all tokens with the origin of the token that completes it."""
    found: list[tuple[str, str]] = []
    data, text = b"", ""
    for event in events:
        if isinstance(event, TokenEvent):
            data += tokenizer.token_bytes(event.token)
            whole = data.decode("utf-8", "ignore")  # valid text: only its end can be incomplete
            found += [(character, event.origin) for character in whole[len(text) :]]
            text = whole
    return found


@given(text=st.text("abé模👩", max_size=30), cuts=cuts, origins=sources, stop=stops, groups=cuts)
@example(text="👩👩", cuts=[1, 2, 3, 5], origins=["target", "suffix"], stop=[], groups=[2])
@example(text="ab", cuts=[1], origins=["suffix", "target"], stop=["bb"], groups=[0])
def test_a_character_belongs_to_the_token_that_completes_it(
    text: str, cuts: list[int], origins: list[str], stop: list[str], groups: list[int]
) -> None:
    pieces = split(text.encode(), cuts)
    tokenizer = Pieces(pieces)
    events = events_of(tokenizer, range(len(pieces)), origins, stop)
    found = shown(written(tokenizer, events, groups))
    assert found == by_character(events, tokenizer)[: len(found)]
    assert "".join(character for character, _ in found) == "".join(event.text for event in events)


@given(data=st.binary(max_size=30), cuts=cuts, origins=sources, stop=stops, groups=cuts)
@example(data=b"a\xf0\x9f", cuts=[1, 2], origins=["target", "suffix", "recycle"], stop=[], groups=[])
def test_the_runs_add_up_for_any_bytes(
    data: bytes, cuts: list[int], origins: list[str], stop: list[str], groups: list[int]
) -> None:
    pieces = split(data, cuts)
    tokenizer = Pieces(pieces)
    events = events_of(tokenizer, range(len(pieces)), origins, stop)
    found = shown(written(tokenizer, events, groups))
    assert "".join(character for character, _ in found) == "".join(event.text for event in events)


def test_what_only_the_end_completes_belongs_to_the_last_token() -> None:
    tokenizer = Pieces([b"a", b"\xf0", b"\x9f"])
    events = events_of(tokenizer, range(3), ["target", "suffix", "recycle"], [])
    assert shown(written(tokenizer, events, [])) == [("a", "target"), ("\ufffd", "recycle")]


# --- through readers -----------------------------------------------------------------------------------

CONTROL = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>")
HARMONY_ANSWER: list[str] = [
    "<|channel|>", "analysis", "<|message|>", "hmm ", "so", "<|end|>",
    "<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "Yes, ", "yes.",
]  # fmt: skip


def test_reasoning_and_text_behind_control_tokens_have_origins() -> None:
    texts = [text for text in HARMONY_ANSWER if text not in CONTROL]
    tokenizer = Pieces([text.encode() for text in texts], "<|channel|> functions. {{ tools }}", *CONTROL)
    tokens = [
        tokenizer.control.get(text, texts.index(text) if text in texts else -1) for text in HARMONY_ANSWER
    ]
    events = events_of(tokenizer, tokens, ["suffix", "target"], ["zz"])
    choices = written(tokenizer, events, range(len(events)))
    origin_of = dict(zip(HARMONY_ANSWER, ["suffix", "target"] * 7, strict=False))
    wanted = [(letter, origin_of[text]) for text in ("hmm ", "so", "Yes, ", "yes.") for letter in text]
    assert shown(choices) == wanted
    assert "".join(choice["delta"].get("reasoning_content", "") for choice in choices) == "hmm so"


marks = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|channel|>final<|message|>",
    "<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant", "<|call|>",
    '{"name": "add", "arguments": {"a": 1}}', '{"name": "add", "arguments": "{\\"a\\": ',
    "<function=add>", "<parameter=a>", "</parameter>", "</function>",
    "[add(a=1)]", "add\n", "<arg_key>a</arg_key>", "<arg_value>", "{", "}", '"', "x", " ", "\n", "é", "\\",
    "<start_function_call>call:add{a:<escape>", "<think>", "</think>", "```json\n",
]  # fmt: skip


@given(
    st.sampled_from(sorted(FORMS)),
    st.lists(st.sampled_from(marks), max_size=14).map("".join),
    cuts,
    st.booleans(),
)
def test_a_parser_tells_where_its_text_comes_from(
    name: str, text: str, places: list[int], limit: bool
) -> None:
    parser = FORMS[name].dialect.parser(tools_named(), numbered())
    spans: list[tuple[int, int]] = []
    parser.trace(spans)
    found = [delta for piece in pieces_of(text, places) for delta in parser.feed(piece)]
    found += parser.finish(cut=limit)
    said = "".join(delta.text for delta in found if isinstance(delta, TextDelta | ReasoningDelta))
    assert "".join(text[start:end] for start, end in spans) == said
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


def test_origins_are_only_kept_when_they_are_wanted() -> None:
    tokenizer = Pieces([b"a"], "<|channel|> functions. {{ tools }}", *CONTROL)
    use = tool_use(tokenizer, None, None, parallel=True)
    assert use.dialect is HARMONY
    events = events_of(tokenizer, [0], ["suffix"], [])
    choices = list(ChoiceWriter(0, use).write(events))
    assert [choice["delta"].get("content") for choice in choices] == ["", "a", None]
    assert not any("origins" in choice for choice in choices)


def test_runs_join_neighbours_and_end_with_the_last_origin() -> None:
    runs = Runs()
    runs.extend([("a", 2), ("a", 1), ("b", 1)])
    assert runs.take(2) == [("a", 2)]
    assert runs.take(5) == [("a", 1), ("b", 4)]
    assert Origins(FakeTokenizer()).take(0) == []
