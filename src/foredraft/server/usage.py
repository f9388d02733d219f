"""Token counts of finished answers, streamed or whole, in the form of each API: `usage`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foredraft.types import Usage


def openai_usage(counts: Sequence[Usage], answers: int = 1) -> dict[str, Any]:
    """OpenAI's `usage` over all answers, given in the order of their prompts, `answers` to each prompt. A
    prompt counts once.
    """
    prompts = counts[::answers]
    prompt = sum(count.prompt_tokens for count in prompts)
    completion = sum(count.completion_tokens for count in counts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(count.cached_tokens for count in prompts)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(count.reasoning_tokens for count in counts),
            "accepted_prediction_tokens": sum(count.accepted_prediction_tokens for count in counts),
            "rejected_prediction_tokens": sum(count.rejected_prediction_tokens for count in counts),
        },
    }


def response_usage(count: Usage) -> dict[str, Any]:
    """The Responses API's `usage`. `cache_write_tokens`: the input tokens that were computed."""
    return {
        "input_tokens": count.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": count.cached_tokens,
            "cache_write_tokens": count.prompt_tokens - count.cached_tokens,
        },
        "output_tokens": count.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": count.reasoning_tokens},
        "total_tokens": count.prompt_tokens + count.completion_tokens,
    }


def anthropic_usage(count: Usage) -> dict[str, Any]:
    """Anthropic's `usage`: `input_tokens` are the tokens that were computed; the prompt is the sum of the
    three input counts.
    """
    return {
        "input_tokens": count.prompt_tokens - count.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": count.cached_tokens,
        "output_tokens": count.completion_tokens,
        "output_tokens_details": {"thinking_tokens": count.reasoning_tokens},
    }
