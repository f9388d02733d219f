"""A completion as the JSON object of `run --json`, with llama.cpp's and OpenAI's names
(docs/python-api.md).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from foredraft.server.usage import openai_usage
from foredraft.types import Completion, Timings


def completion_dict(completion: Completion, thought: str = "", text: str | None = None) -> dict[str, Any]:
    """`text` (without the thought if `text` is given, which is then `reasoning_content`), `tokens`, `origins`
    (of each token), `finish_reason`, `usage`, `timings` and `speculation`; `logprobs` if requested, `error`
    if generation failed.
    """
    report: dict[str, Any] = {
        "text": completion.text if text is None else text,
        **({"reasoning_content": thought} if thought else {}),
        "tokens": list(completion.tokens),
        "origins": list(completion.origins),
        "finish_reason": completion.finish_reason.value,
        "usage": openai_usage([completion.usage]),
        "timings": timings_dict(completion.timings),
        "speculation": asdict(completion.speculation),
    }
    if completion.logprobs:
        report["logprobs"] = [asdict(logprob) for logprob in completion.logprobs]
    if completion.error:
        report["error"] = completion.error
    return report


def timings_dict(timings: Timings) -> dict[str, Any]:
    """llama.cpp's `timings`."""
    return {
        **asdict(timings),
        "prompt_per_second": timings.prompt_per_second,
        "predicted_per_second": timings.predicted_per_second,
    }
