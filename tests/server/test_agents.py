"""What coding agents send, shortened: each body was recorded from the agent that the test names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from agent_server import CUE, AgentServer, acting, call, thought

CLAUDE = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,effort-2025-11-24",
    "authorization": "Bearer none",
}
EPHEMERAL = {"type": "ephemeral"}
CLAUDE_CODE: dict[str, Any] = {
    "model": "default",
    "metadata": {"user_id": '{"device_id":"27","account_uuid":"","session_id":"bd"}'},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive", "display": "updates"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1"},
        {"type": "text", "text": "You are an agent.", "cache_control": EPHEMERAL},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Look around"}]},
        {"role": "system", "content": [{"type": "text", "text": "# Environment"}]},
    ],
    "tools": [
        {"name": "ToolSearch", "description": "Find tools", "input_schema": {"type": "object"}},
        {"name": "Later", "description": "", "input_schema": {"type": "object"}, "defer_loading": True},
    ],
}
EXEC: dict[str, Any] = {
    "type": "function",
    "name": "exec_command",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
}
SPAWN = {
    "type": "function",
    "name": "spawn_agent",
    "description": "Start an agent.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"message": {"type": "string"}}},
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
}
WEB = {"type": "web_search", "external_web_access": True}
AGENTS = {"type": "namespace", "name": "multi_agent_v1", "description": "Sub-agents.", "tools": [SPAWN]}
CODEX: dict[str, Any] = {
    "model": "gpt-5.5",
    "instructions": "You are a coding agent.",
    "input": [
        {
            "type": "message",
            "id": "msg_1",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Skills"}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Mend it"}]},
    ],
    "tools": [EXEC, PATCH, AGENTS, WEB],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a2",
    "client_metadata": {"session_id": "01a2", "x-codex-turn-metadata": "{}"},
}
"""As for a model that Codex knows; for others it sends no custom tools."""

THREE_LINES = '*** Begin Patch\n*** Update File: "sum.py"\n*** End Patch'


@contextmanager
def saying(*answers: str) -> Iterator[tuple[AgentServer, list[str]]]:
    """A server whose model gives these answers, one after the other, and the prompts that it has read."""
    read: list[str] = []

    def reply(prompt: str) -> str:
        read.append(prompt)
        return answers[len(read) - 1]

    with acting(reply) as server:
        yield server, read


def respond(server: AgentServer, **changes: Any) -> httpx.Response:
    body = {**CODEX, "stream": False, **changes}
    reply = httpx.post(f"{server.url}/v1/responses", json=body, timeout=30)
    assert reply.status_code == 200, reply.text
    return reply


def refused(changes: dict[str, Any]) -> str:
    with saying() as (server, _):
        reply = httpx.post(f"{server.url}/v1/responses", json={**CODEX, **changes}, timeout=30)
    assert reply.status_code == 400, reply.text
    return str(reply.json()["error"]["message"])


# --- Claude Code ---------------------------------------------------------------------------------------


def test_claude_code_is_answered() -> None:
    with saying("Done.") as (server, read):
        url = f"{server.url}/v1/messages?beta=true"
        reply = httpx.post(url, json=CLAUDE_CODE, headers=CLAUDE, timeout=30)
        assert reply.status_code == 200, reply.text
        assert reply.json()["content"] == [{"type": "text", "text": "Done."}]
        assert "You are an agent." in read[0]
        assert "# Environment" in read[0]


def test_claude_code_hands_back_tools_that_it_found() -> None:
    found = [{"type": "tool_reference", "tool_name": "WebFetch"}]
    use = {"type": "tool_use", "id": "toolu_1", "name": "ToolSearch", "input": {"query": "select:WebFetch"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": found, "cache_control": EPHEMERAL}
    more = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    body = {**CLAUDE_CODE, "messages": [*CLAUDE_CODE["messages"], *more]}
    with saying("Done.") as (server, read):
        reply = httpx.post(f"{server.url}/v1/messages?beta=true", json=body, headers=CLAUDE, timeout=30)
        assert reply.status_code == 200, reply.text
        assert "<tool_response>\nThe tool WebFetch can be called.\n</tool_response>" in read[0]
        counted = httpx.post(f"{server.url}/v1/messages/count_tokens?beta=true", json=body, headers=CLAUDE)
        assert counted.json()["input_tokens"] == len(read[0].encode())


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (
            {
                "type": "search_result",
                "title": "A",
                "source": "b",
                "content": [{"type": "text", "text": "c"}],
            },
            "A\nb\nc",
        ),
        ({"type": "document", "title": "A", "source": {"type": "text", "data": "plain"}}, "A\nplain"),
        ({"type": "document", "source": {"type": "content", "content": "plain"}}, "plain"),
    ],
)
def test_blocks_that_are_text_in_another_shape(block: dict[str, Any], text: str) -> None:
    body = {**CLAUDE_CODE, "messages": [{"role": "user", "content": [block]}]}
    with saying("Done.") as (server, read):
        reply = httpx.post(f"{server.url}/v1/messages", json=body, headers=CLAUDE, timeout=30)
        assert reply.status_code == 200, reply.text
        assert f"user\n{text}<|im_end|>" in read[0]


def test_a_document_of_another_kind_is_refused_by_its_name() -> None:
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}
    body = {**CLAUDE_CODE, "messages": [{"role": "user", "content": [pdf]}]}
    with saying() as (server, _):
        reply = httpx.post(f"{server.url}/v1/messages", json=body, headers=CLAUDE, timeout=30)
        assert reply.status_code == 400
        assert "'document'" in reply.json()["error"]["message"]


def test_thoughts_without_their_text_come_back() -> None:
    """Claude Code wants them so where nobody looks on."""
    body = {**CLAUDE_CODE, "thinking": {"type": "adaptive", "display": "omitted"}}
    with saying(thought("I wonder.") + call("Later"), "Done.") as (server, read):
        first = httpx.post(f"{server.url}/v1/messages", json=body, headers=CLAUDE, timeout=30).json()
        hidden, use = first["content"]
        assert (hidden["type"], hidden["thinking"], use["type"]) == ("thinking", "", "tool_use")
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "ok"}
        more = [{"role": "assistant", "content": [hidden, use]}, {"role": "user", "content": [result]}]
        body["messages"] = [*CLAUDE_CODE["messages"], *more]
        assert httpx.post(f"{server.url}/v1/messages", json=body, headers=CLAUDE, timeout=30).is_success
        assert "<think>\nI wonder.\n</think>" in read[1]


# --- Codex ---------------------------------------------------------------------------------------------


def test_codex_is_answered() -> None:
    with saying("Done.") as (server, read):
        reply = respond(server)
        assert reply.json()["output"][0]["content"][0]["text"] == "Done."
        assert "tools.web_search" in reply.headers["x-foredraft-ignored"]
        assert [tool["type"] for tool in reply.json()["tools"]] == ["function", "custom", "namespace"]
        assert "web_search" not in read[0]
        assert "*** Begin Patch" in read[0], "a grammar is described to the model"


def test_a_custom_tool_is_called_and_answered() -> None:
    with saying(call("apply_patch", input=THREE_LINES), "Done.") as (server, read):
        (item,) = respond(server).json()["output"]
        assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", THREE_LINES)
        assert item["status"] == "completed"
        result = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "Success."}
        respond(server, input=[*CODEX["input"], item, result])
        assert call("apply_patch", input=THREE_LINES).partition("\n")[2].partition("\n")[0] in read[1]
        assert "<tool_response>\nSuccess.\n</tool_response>" in read[1]


def test_a_custom_tool_is_streamed() -> None:
    with saying("I do.\n" + call("apply_patch", input=THREE_LINES)) as (server, _):
        sent = {**CODEX}
        own = sent.pop("client_metadata")
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            events: list[Any] = list(client.responses.create(**sent, extra_body={"client_metadata": own}))
    pieces = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert len(pieces) > 1
    assert "".join(pieces) == THREE_LINES
    (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert done.input == THREE_LINES
    message, made = events[-1].response.output
    assert (message.type, made.type, made.input) == ("message", "custom_tool_call", THREE_LINES)
    assert [event.sequence_number for event in events] == [*range(len(events))]


def test_a_function_of_a_namespace_is_called_and_answered() -> None:
    with saying(call("multi_agent_v1__spawn_agent", message="go"), "Done.") as (server, read):
        (item,) = respond(server).json()["output"]
        assert (item["type"], item["name"], item["namespace"]) == (
            "function_call",
            "spawn_agent",
            "multi_agent_v1",
        )
        result = {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"}
        respond(server, input=[*CODEX["input"], item, result])
        assert '"name": "multi_agent_v1__spawn_agent"' in read[1].rpartition("Mend it")[2]


def test_tools_that_are_sent_as_an_item() -> None:
    added = {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [AGENTS, PATCH, WEB]}
    with saying(call("apply_patch", input="x")) as (server, read):
        reply = respond(server, input=[added, *CODEX["input"]], tools=None)
        assert reply.json()["output"][0]["type"] == "custom_tool_call"
        assert "multi_agent_v1__spawn_agent" in read[0]
        assert "exec_command" not in read[0]
        assert read[0].count(CUE) == 1


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        ({"type": "custom", "name": "apply_patch"}, "custom_tool_call"),
        ({"type": "function", "name": "exec_command"}, "function_call"),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "custom", "name": "apply_patch"}],
            },
            "custom_tool_call",
        ),
    ],
)
def test_a_tool_that_is_chosen_is_called(choice: dict[str, Any], kind: str) -> None:
    with saying('{"name": "apply_patch", "arguments": {"input": "x"}}\n</tool_call>') as (server, _):
        (item,) = respond(server, tool_choice=choice, max_output_tokens=200).json()["output"]
    assert item["type"] == kind


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tools": [WEB]}, "OpenAI's servers run"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [{"type": "computer_use_preview"}]}, "only your own functions"),
        ({"tools": [{"type": "namespace", "name": "a"}]}, "a list of tools"),
        ({"tools": [{**AGENTS, "tools": [WEB]}]}, "of a namespace"),
        ({"tools": [{**AGENTS, "tools": [{"type": "custom"}]}]}, "a custom tool needs a name"),
        ({"tools": [PATCH, PATCH]}, "two functions are named 'apply_patch'"),
        ({"tools": [{**EXEC, "strct": False}]}, "Did you mean 'strict'"),
        ({"tools": [{**AGENTS, "tools": [{**SPAWN, "strct": False}]}]}, "Did you mean 'strict'"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(changes: dict[str, Any], says: str) -> None:
    assert says in refused(changes)


@pytest.mark.parametrize("encrypted", ["", "foredraft:!", "foredraft:/w==", "another's"])
def test_encrypted_thoughts_come_back(encrypted: str) -> None:
    """Vercel's AI SDK hands back nothing else of a thought; what cannot be read is left out."""
    with saying(thought("I wonder.") + call("exec_command", cmd="ls"), "Done.") as (server, read):
        item, made = respond(server, reasoning=None).json()["output"]
        sent = {"type": "reasoning", "id": item["id"], "summary": []}
        sent["encrypted_content"] = encrypted or item["encrypted_content"]
        result = {"type": "function_call_output", "call_id": made["call_id"], "output": "sum.py"}
        respond(server, input=[*CODEX["input"], sent, made, result])
        assert ("I wonder." in read[1]) == (not encrypted)


def test_json_of_a_call_that_is_cut() -> None:
    long = call("apply_patch", input="\u00e9\n" * 200)
    with saying(long) as (server, _):
        answer = respond(server, max_output_tokens=120).json()
    (item,) = answer["output"]
    assert (answer["status"], item["status"]) == ("incomplete", "incomplete")
    assert item["input"].startswith("\u00e9\n")
    assert "\u00e9\n".startswith(item["input"][-2:]) or item["input"].endswith(("\u00e9", "\n"))
