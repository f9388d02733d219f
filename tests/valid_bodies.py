"""Valid bodies for each POST path, with every kind of field, and what each body cannot do without."""

from __future__ import annotations

from typing import Any

Path = tuple[str | int, ...]
"""The keys and indices that lead to a part of a body."""

_SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "additionalProperties": False}
_CHOOSING: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.05,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.5,
    "seed": 3,
    "stop": ["zzz"],
}
_SAMPLING: dict[str, Any] = {
    **_CHOOSING,
    "model": "fake",
    "stream": False,
    "n": 1,
    "logit_bias": {"97": 1.5},
    "user": "u",
    "min_tokens": 0,
    "ignore_eos": False,
    "stop_token_ids": [1],
    "speculate": "auto",
    "priority": 0,
    "max_tokens": 4,
}
_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": _SCHEMA}}
_CLAUDE: dict[str, Any] = {
    "model": "fake",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "and?"},
    ],
    "system": "be brief",
}

VALID: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {
            **_SAMPLING,
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "n"},
            ],
            "logprobs": True,
            "top_logprobs": 1,
            "prediction": {"type": "content", "content": "hello"},
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}},
        },
        {
            "messages": [{"role": "user", "content": "hi"}],
            "max_completion_tokens": 4,
            "tools": [_TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "parallel_tool_calls": False,
            "stream": True,
            "stream_options": {"include_usage": True, "include_origins": True},
        },
        {
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well"}],
            "max_tokens": 4,
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
    ],
    "/v1/completions": [
        {**_SAMPLING, "prompt": "once", "echo": False, "best_of": 1, "logprobs": 1},
        {"prompt": [104, 105], "max_tokens": 4, "stream": True, "regex": "[a-z]{3}"},
    ],
    "/v1/responses": [
        {
            **_CHOOSING,
            "model": "fake",
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"role": "assistant", "content": "yes"},
            ],
            "instructions": "be brief",
            "max_output_tokens": 4,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 1,
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "store": False,
            "user": "u",
        },
        {
            "input": [
                {"role": "user", "content": "hi"},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "cold"},
            ],
            "max_output_tokens": 4,
            "stream": True,
            "tools": [{"type": "function", "name": "f", "parameters": _SCHEMA}],
            "tool_choice": {"type": "function", "name": "f"},
            "speculate": 3,
        },
        {
            "input": "hi",
            "max_output_tokens": 4,
            "text": {"format": {"type": "json_schema", "name": "a", "schema": _SCHEMA}},
        },
    ],
    "/v1/messages": [
        {
            **_CLAUDE,
            "max_tokens": 4,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 5,
            "stop_sequences": ["zzz"],
            "metadata": {"user_id": "u"},
        },
        {**_CLAUDE, "max_tokens": 4, "stream": True},
        {
            "model": "fake",
            "max_tokens": 4,
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "cold"}]},
            ],
            "tools": [{"name": "f", "description": "d", "input_schema": _SCHEMA}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        },
        {
            **_CLAUDE,
            "max_tokens": 4,
            "output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}},
            "thinking": {"type": "disabled"},
        },
    ],
    "/v1/messages/count_tokens": [_CLAUDE],
    "/tokenize": [
        {
            "content": "hi",
            "model": "fake",
            "add_special": False,
            "parse_special": True,
            "with_pieces": False,
        }
    ],
    "/detokenize": [{"tokens": [104, 105], "model": "fake"}],
}
"""Bodies that are answered with 200. Together they hold every kind of field."""

REQUIRED: dict[str, tuple[Path, ...]] = {
    "/v1/chat/completions": (("messages",), ("messages", 0, "role"), ("messages", 0, "content")),
    "/v1/completions": (("prompt",),),
    "/v1/responses": (("input",),),
    "/v1/messages": (
        ("model",),
        ("max_tokens",),
        ("messages",),
        ("messages", 0, "role"),
        ("messages", 0, "content"),
    ),
    "/v1/messages/count_tokens": (("model",), ("messages",), ("messages", 0, "role")),
    "/tokenize": (("content",),),
    "/detokenize": (("tokens",),),
}
