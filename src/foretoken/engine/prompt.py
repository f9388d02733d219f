"""What a caller may hand in as a prompt and as sampling settings, checked and brought into one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TypeAlias, cast

from foretoken.engine.options import SamplingOptions
from foretoken.errors import ContextLengthError, RequestError
from foretoken.protocols import Tokenizer
from foretoken.types import Message, ModelInfo, SamplingParams

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or chat messages (which go through the model's chat template)."""


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """The token ids of a prompt. Raises RequestError for anything that is not a prompt."""
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, special=True, add_bos=True)
    parts: list[object] = list(prompt)
    if all(isinstance(part, Integral) and not isinstance(part, bool) for part in parts):
        return [int(cast("int", part)) for part in parts]
    if not all(isinstance(part, Mapping) for part in parts):
        raise RequestError("A prompt is text, a list of token ids, or a list of messages.")
    messages = [_check_message(cast("Message", part)) for part in parts]
    return tokenizer.encode(tokenizer.apply_chat_template(messages), special=True, add_bos=True)


def _check_message(message: Message) -> Message:
    if not isinstance(message.get("role"), str):
        raise RequestError(
            "A message has no role.",
            hint='A message is {"role": "user", "content": "…"}, as in OpenAI\'s API.',
        )
    if "content" not in message:
        raise RequestError(f"The {message['role']} message has no content.")
    return message


def check_tokens(tokens: Sequence[int], info: ModelInfo) -> None:
    """Raises RequestError for an impossible prompt, ContextLengthError for one that leaves no room."""
    if not tokens:
        raise RequestError("The prompt is empty.", hint="Give at least one token of text.")
    if min(tokens) < 0 or max(tokens) >= info.vocab_size:
        raise RequestError(f"The prompt has a token id outside the vocabulary (0 to {info.vocab_size - 1}).")
    if len(tokens) >= info.context_length:
        raise ContextLengthError(
            f"The prompt has {len(tokens)} tokens; the context holds {info.context_length}, answer included.",
            hint="Shorten the prompt, or use a larger context "
            f"(this model was trained for {info.trained_context} tokens).",
        )


def sampling_params(params: SamplingParams | None, sampling: SamplingOptions) -> SamplingParams:
    """Settings given as an object or as keywords, not as both. Raises RequestError."""
    if params is not None and sampling:
        raise RequestError("Give sampling settings as `params` or as keywords, not both.")
    if params is not None:
        return params
    unknown = set(sampling) - set(SamplingOptions.__annotations__)
    if unknown:
        raise RequestError(
            f"There is no sampling setting {min(unknown)!r}.",
            hint=f"Valid are: {', '.join(SamplingOptions.__annotations__)}.",
        )
    return SamplingParams(**sampling)
