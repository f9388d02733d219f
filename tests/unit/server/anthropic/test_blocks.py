"""Content blocks: whole answers in any pieces, and inputs that were cut short."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.errors import BackendError
from foredraft.server.anthropic.blocks import BlockFolder, BlockWriter, read_input
from foredraft.server.openai.tool_use import tool_use
from foredraft.testing import FakeTokenizer
from foredraft.types import Event, FinishEvent, FinishReason, SpeculationStats, Timings, TokenEvent, Usage
from tool_cases import cut

TOOLS = [{"type": "function", "name": name, "strict": False} for name in ("add", "now")]
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": [1, {"b": "x"}]}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
STATS = SpeculationStats("off", False, "off", 0, None, None, None, {}, (), True, "")


def finish(text: str = "") -> FinishEvent:
    return FinishEvent(1, FinishReason.STOP, text, Usage(1, 1, 0, 0, 0), Timings(1, 1.0, 1, 1.0, 0, 0), STATS)


def written(pieces: Iterable[str], *, tools: bool = True, together: int = 1) -> list[dict[str, Any]]:
    """The events of an answer that the engine shows in these pieces, the last of them at its end; so many
    come together.
    """
    use = tool_use(FakeTokenizer(), TOOLS if tools else [], None, parallel=True, flat=True)
    writer = BlockWriter(use.reader())
    *shown, last = [*pieces] or [""]
    events: list[Event] = [TokenEvent(1, 0, piece, "target") for piece in shown]
    events.append(finish(last))
    groups = (events[at : at + together] for at in range(0, len(events), together))
    return [block_event for group in groups for block_event in writer.write(group)]


def folded(events: Iterable[dict[str, Any]]) -> list[Any]:
    """Whole blocks: texts, and calls as (name, input)."""
    folder = BlockFolder()
    for event in events:
        folder.add(event)
    return [
        block["text"] if block["type"] == "text" else (block["name"], block["input"])
        for block in folder.blocks
    ]


ANSWERS = {
    "": [""],
    "hello": ["hello"],
    ADD: [("add", {"a": [1, {"b": "x"}]})],
    f"Look: {ADD}\n{NOW}": ["Look: ", ("add", {"a": [1, {"b": "x"}]}), ("now", {})],
    f"{NOW} and {NOW}\n": [("now", {}), " and ", ("now", {})],
    f"{NOW}<tool_call>": [("now", {}), "<tool_call>"],
    '<tool_call>{"name": "now", "arguments": {"a": 1, "b": "tw': [("now", {"a": 1})],
    '<tool_call>{"name": "now", "arguments": {"a": oops}}': [("now", {}), "oops}}"],
}


@pytest.mark.parametrize(("answer", "blocks"), ANSWERS.items())
def test_answers(answer: str, blocks: list[Any]) -> None:
    assert folded(written([answer])) == blocks


@given(st.sampled_from(list(ANSWERS)), st.lists(st.integers(0, 200), max_size=8), st.integers(1, 9))
def test_the_pieces_of_an_answer_make_no_difference(answer: str, cuts: list[int], together: int) -> None:
    events = written(cut(answer, cuts), together=together)
    assert folded(events) == ANSWERS[answer]
    open_block = None
    begun = 0
    for event in events:
        if event["type"] == "content_block_start":
            assert (open_block, event["index"]) == (None, begun)
            assert event["content_block"].get("input", {}) == {}
            open_block, begun = begun, begun + 1
        else:
            assert event["index"] == open_block
        if event["type"] == "content_block_stop":
            open_block = None
        elif event["type"] == "content_block_delta":
            assert event["delta"].get("text") or event["delta"].get("partial_json"), "nothing said in vain"
    assert open_block is None


def test_without_tools_calls_are_text() -> None:
    assert folded(written(["one ", ADD], tools=False)) == [f"one {ADD}"]


def test_every_call_has_an_id_of_its_own() -> None:
    events = written([NOW + NOW])
    ids = [event["content_block"]["id"] for event in events if event["type"] == "content_block_start"]
    assert len(set(ids)) == 2
    assert all(name.startswith("toolu_") for name in ids)


# --- inputs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        ("{", {}),
        ('{"a": 1, "b"', {"a": 1}),
        ('{"a": [1, {"b": "x', {"a": [1, {}]}),
        ('{"a": "\\ud83d\\ude00", "n": 12345678901234567890}', {"a": "😀", "n": 12345678901234567890}),
    ],
)
def test_inputs(text: str, value: dict[str, Any]) -> None:
    assert read_input(text) == value


@pytest.mark.parametrize("value", ["1e999", "-1e999", r'"\ud83d"', r'"\ude00"', "[" * 250 + "]" * 250])
def test_inputs_that_no_answer_can_hold(value: str) -> None:
    with pytest.raises(BackendError, match="input that cannot be parsed"):
        read_input(f'{{"a": {value}}}')


@given(st.dictionaries(st.text(), st.recursive(st.integers() | st.text() | st.none(), st.lists), max_size=4))
def test_whole_inputs_are_what_they_were(value: dict[str, Any]) -> None:
    assert read_input(json.dumps(value)) == value
