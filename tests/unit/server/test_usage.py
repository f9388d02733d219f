"""Token counts of answers, in each API's names."""

from __future__ import annotations

from foredraft.server.usage import anthropic_usage, openai_usage, response_usage
from foredraft.types import Usage

COUNT = Usage(30, 5, 20, 1, 2, 3)


def test_every_answer_to_a_prompt_counts_and_the_prompt_once() -> None:
    two_prompts = [
        Usage(30, 5, 20, 1, 2),
        Usage(30, 7, 0, 3, 4, 6),
        Usage(10, 1, 0, 0, 0),
        Usage(10, 2, 9, 0, 5),
    ]
    assert openai_usage(two_prompts, answers=2) == {
        "prompt_tokens": 40,
        "completion_tokens": 15,
        "total_tokens": 55,
        "prompt_tokens_details": {"cached_tokens": 20},
        "completion_tokens_details": {
            "reasoning_tokens": 6,
            "accepted_prediction_tokens": 4,
            "rejected_prediction_tokens": 11,
        },
    }


def test_the_apis_agree_on_one_answer() -> None:
    openai, response, anthropic = openai_usage([COUNT]), response_usage(COUNT), anthropic_usage(COUNT)
    thought = anthropic.pop("output_tokens_details")["thinking_tokens"]
    assert openai["total_tokens"] == response["total_tokens"] == sum(anthropic.values()) == 35
    assert openai["completion_tokens_details"]["reasoning_tokens"] == thought == 3
    assert response["output_tokens_details"] == {"reasoning_tokens": 3}
    cached = openai["prompt_tokens_details"]["cached_tokens"]
    assert cached == response["input_tokens_details"]["cached_tokens"] == anthropic["cache_read_input_tokens"]
    assert response["input_tokens_details"]["cache_write_tokens"] == anthropic["input_tokens"] == 10
