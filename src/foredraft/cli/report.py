"""A completion as the JSON object of `run --json`, with llama.cpp's and OpenAI's names
(docs/python-api.md).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from foredraft.types import Completion, Timings, Usage


def completion_dict(completion: Completion) -> dict[str, Any]:
    """`text`, `tokens`, `origins` (of each token), `finish_reason`, `usage`, `timings` and `speculation`;
    `logprobs` if requested, `error` if generation failed.
    """
    report: dict[str, Any] = {
        "text": completion.text,
        "tokens": list(completion.tokens),
        "origins": list(completion.origins),
        "finish_reason": completion.finish_reason.value,
        "usage": usage_dict(completion.usage),
        "timings": timings_dict(completion.timings),
        "speculation": asdict(completion.speculation),
    }
    if completion.logprobs:
        report["logprobs"] = [asdict(logprob) for logprob in completion.logprobs]
    if completion.error:
        report["error"] = completion.error
    return report


def usage_dict(usage: Usage) -> dict[str, Any]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted_prediction_tokens,
            "rejected_prediction_tokens": usage.rejected_prediction_tokens,
        },
    }


def timings_dict(timings: Timings) -> dict[str, Any]:
    """llama.cpp's `timings`."""
    return {
        **asdict(timings),
        "prompt_per_second": timings.prompt_per_second,
        "predicted_per_second": timings.predicted_per_second,
    }
