"""Routing by prefix: what a prompt is known by, and which replica gets it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.scale.routing import BLOCK, MOST, RoutingTable, beginnings_of

CHAT = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "Answer briefly."}
FIRST = {"role": "user", "content": "What is a heron?"}
ANSWER = {"role": "assistant", "content": "A bird."}
SECOND = {"role": "user", "content": "Where does it live?"}


def found(path: str, scope: str = "team", **body: Any) -> tuple[int, ...]:
    return beginnings_of(path, json.dumps(body).encode(), scope)


def chat(*messages: object, **more: Any) -> tuple[int, ...]:
    return found(CHAT, messages=messages, **more)


# --- what a prompt is known by -------------------------------------------------------------------------


def test_a_turn_begins_with_all_that_was_said_before() -> None:
    before, after = chat(SYSTEM, FIRST), chat(SYSTEM, FIRST, ANSWER, SECOND)
    assert len(before) == 2
    assert len(after) == 4
    assert after[:2] == before
    other = chat(SYSTEM, SECOND)
    assert other[0] == before[0]
    assert other[1] != before[1]


def test_the_same_conversation_is_known_in_every_api() -> None:
    expected = chat(SYSTEM, FIRST, ANSWER, SECOND)
    parts = [{"type": "text", "text": FIRST["content"], "cache_control": {"type": "ephemeral"}}]
    asked = {"role": "user", "content": parts}
    assert found("/v1/messages", system="Answer briefly.", messages=[asked, ANSWER, SECOND]) == expected
    given = [{"role": "user", "content": [{"type": "input_text", "text": FIRST["content"]}]}, ANSWER, SECOND]
    assert found("/v1/responses", instructions="Answer briefly.", input=given) == expected
    assert chat({**SYSTEM, "role": "developer"}, FIRST, ANSWER, SECOND) == expected
    assert found("/v1/responses/", input=FIRST["content"]) == chat(FIRST)


def test_what_is_not_in_the_prompt_does_not_matter() -> None:
    plain = chat(SYSTEM, FIRST)
    assert chat(SYSTEM, FIRST, temperature=1, stream=True, seed=3, user="ann") == plain
    assert chat(dict(reversed(SYSTEM.items())), {**FIRST, "annotations": [], "refusal": None}) == plain
    spaced = json.dumps({"stream": True, "messages": [SYSTEM, FIRST]}, indent=3)
    assert beginnings_of(CHAT, spaced.encode(), "team") == plain


def test_what_is_in_the_prompt_matters() -> None:
    plain = chat(SYSTEM, FIRST)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": 1, "b": 2}}}
    turned = {"function": {"parameters": {"b": 2, "a": 1}, "name": "f"}, "type": "function"}
    with_tools = chat(SYSTEM, FIRST, tools=[tool])
    assert not set(with_tools) & set(plain)
    assert chat(SYSTEM, FIRST, tools=[turned]) == with_tools
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    assert chat(FIRST, call)[1] != chat(FIRST, ANSWER)[1]
    assert chat(ANSWER)[0] != chat({**ANSWER, "role": "user"})[0]


def test_models_adapters_and_scopes_share_nothing() -> None:
    sides = [
        chat(SYSTEM, FIRST, model="a"),
        chat(SYSTEM, FIRST, model="a:adapter"),
        chat(SYSTEM, FIRST, scope="other", model="a"),
    ]
    assert len({one for side in sides for one in side}) == 6


def test_long_texts_are_known_in_blocks() -> None:
    text = "".join(f"{number} bottles, " for number in range(1000))[: 4 * BLOCK]
    whole, longer = found("/v1/completions", prompt=text), found("/v1/completions", prompt=text + "x" * BLOCK)
    assert len(whole) == 5
    assert longer[:4] == whole[:4]
    assert longer[4] != whole[4]  # where a text ends is not where a longer one goes on
    assert (
        chat({"role": "user", "content": text + "a"})[:4] == chat({"role": "user", "content": text + "b"})[:4]
    )
    tokens = [*range(500)]
    assert found("/v1/completions", prompt=tokens)[:7] == found("/v1/completions", prompt=[*tokens, 5])[:7]
    assert (
        found("/v1/completions", prompt=[text, "b"]) == found("/v1/completions", prompt=[text, "c"]) == whole
    )


def test_a_very_long_conversation_is_known_by_its_first_and_last_beginnings() -> None:
    turns = [{"role": "user", "content": f"Question {number}: " + "word " * 200} for number in range(600)]
    before, after = chat(SYSTEM, *turns), chat(SYSTEM, *turns, ANSWER, SECOND)
    assert len(before) == len(after) == MOST
    assert before[: MOST // 2] == after[: MOST // 2]
    assert before[-1] == after[-3]
    long = {"role": "user", "content": "word " * 200_000}
    assert chat(long)[-1] == chat(long, ANSWER)[-2]
    assert chat(long)[-1] != chat({**long, "content": "word " * 200_001})[-1]


def test_what_has_no_prompt_has_no_beginnings() -> None:
    assert not found("/v1/embeddings", input="text")
    assert not found("/v1/models")
    assert not chat()
    assert not found("/v1/completions", prompt=[[]])


NASTY = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"messages": ' + b"[" * 100_000,
    b'{"messages": ' + b'[{"content": ' * 450 + b"1" + b"}]" * 450 + b"}",
    b'{"messages": {"role": 1}}',
    b'{"messages": [1, null, {"role": {"a": []}, "content": 5, "tool_calls": {"x": NaN}}]}',
    b'{"messages": [{"content": "\\ud800"}], "model": "\\udfff"}',
    b'{"prompt": [1, "a", null, {}]}',
    b'{"prompt": [99999999999999999999999]}',
    b'{"prompt": 1e999}',
    b'{"prompt": ' + b"9" * 5000 + b"}",
    b'{"input": 7, "instructions": {"a": 1}, "tools": "x"}',
]
PATHS = [CHAT, "/v1/messages", "/v1/responses", "/v1/completions"]


@pytest.mark.parametrize("path", PATHS)
def test_no_body_raises(path: str) -> None:
    for body in NASTY:
        assert isinstance(beginnings_of(path, body, ""), tuple)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "text", "type", "tool_calls", "cache_control"]), inner
        )
    ),
    max_leaves=8,
)


@given(
    st.sampled_from(PATHS),
    st.dictionaries(
        st.sampled_from(["messages", "input", "prompt", "system", "tools", "instructions", "model"]), values
    ),
)
def test_no_json_raises(path: str, body: dict[str, Any]) -> None:
    assert all(isinstance(one, int) for one in found(path, **body))


def test_numbers_are_the_same_in_every_process() -> None:
    program = (
        "from foredraft.scale.routing import beginnings_of\n"
        f"print(beginnings_of({CHAT!r}, {json.dumps({'messages': [SYSTEM, FIRST]}).encode()!r}, 'team'))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(chat(SYSTEM, FIRST))


# --- which replica gets it -----------------------------------------------------------------------------


@pytest.mark.parametrize(("sequences", "slack"), [(2, 1), (4, 1), (8, 2), (16, 4), (30, 7)])
def test_a_prompt_goes_where_its_beginning_is_unless_that_replica_is_busy(sequences: int, slack: int) -> None:
    table = RoutingTable(sequences=sequences)
    table.sent([1, 2], "b")
    assert table.choose([1, 2, 3], {"a": 0, "b": slack, "c": 1}) == "b"
    assert table.choose([1, 2, 3], {"a": 0, "b": slack + 1}) == "a"


@pytest.mark.parametrize("sequences", [1, 2, 8])
def test_a_full_replica_is_not_chosen_while_another_has_a_free_sequence(sequences: int) -> None:
    table = RoutingTable(sequences=sequences)
    table.sent([1, 2], "b")
    assert table.choose([1, 2], {"a": sequences - 1, "b": sequences}) == "a"
    assert table.choose([1, 2], {"a": sequences, "b": sequences + 1}) == "b"  # both are full


def test_chats_with_one_system_prompt_use_every_replica() -> None:
    table, loads = RoutingTable(sequences=1), {"a": 0, "b": 0}
    for number in range(5):
        chosen = table.choose([1, 10 + number], loads)
        table.sent([1, 10 + number], chosen)
        loads[chosen] += 1
        assert max(loads.values()) - min(loads.values()) <= 1 + (number > 1)
    assert min(loads.values()) == 2


def test_the_longest_known_beginning_counts() -> None:
    table = RoutingTable(sequences=8)
    table.sent([1, 2, 3], "a")
    table.sent([1, 7], "b")
    assert table.choose([1, 2, 3, 4], {"a": 0, "b": 0}) == "a"
    assert table.choose([1, 2, 9], {"a": 0, "b": 0}) == "a"
    assert table.choose([1, 8], {"a": 0, "b": 0}) == "b"
    assert table.choose([1, 2, 3], {"a": 3, "b": 1, "c": 0}) == "b"  # the busy one is passed over


def test_a_new_beginning_goes_to_the_least_busy_replica_and_the_same_one_from_every_table() -> None:
    loads = {"a": 1, "b": 0, "c": 0, "d": 0}
    chosen = {one: RoutingTable(sequences=8).choose([one, 7], loads) for one in range(60)}
    assert set(chosen.values()) == {"b", "c", "d"}
    turned = dict(reversed(loads.items()))
    assert {one: RoutingTable(sequences=8).choose([one, 8, 9], turned) for one in range(60)} == chosen
    fewer = {one: RoutingTable(sequences=8).choose([one], {"b": 0, "c": 0}) for one in range(60)}
    assert all(fewer[one] == name for one, name in chosen.items() if name != "d")


def test_requests_without_a_beginning_are_spread() -> None:
    table = RoutingTable(sequences=8)
    assert {table.choose((), {"a": 0, "b": 0}) for _ in range(40)} == {"a", "b"}
    assert table.choose((), {"a": 2, "b": 1}) == "b"


def test_replicas_that_are_gone_are_forgotten() -> None:
    table = RoutingTable(sequences=8)
    table.sent([1, 2], "a")
    table.sent([3], "b")
    assert table.choose([1, 2], {"b": 0}) == "b"
    table.keep({"b"})
    assert len(table) == 1
    assert table.choose([3], {"a": 0, "b": 1}) == "b"


def test_what_was_unused_for_longest_is_forgotten_first() -> None:
    table = RoutingTable(sequences=8, most=3)
    table.sent([1], "a")
    table.sent([2], "a")
    table.sent([1], "b")
    table.sent([3, 4], "b")
    assert len(table) == 3
    loads = {"a": 2, "b": 2, "c": 0}
    assert table.choose([1], loads) == "b"
    assert table.choose([2], loads) == "c"
    table.sent(range(10, 20), "a")
    assert len(table) == 3
    assert table.choose(range(10, 13), loads) == "a"  # of one prompt the longest beginnings go first
