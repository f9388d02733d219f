"""Whether an answer begins with a thought: the model's chat template and the end of the prompt say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from foredraft.protocols import Tokenizer
from foredraft.sampling.thought import spelled, spellings
from foredraft.types import Thinking

_END: Final = 64
"""Tokens at the end of a prompt among which marks are looked for: each of its bytes may be one."""


def is_chat(prompt: object) -> bool:
    """Whether a prompt is messages, which a chat template renders."""
    return isinstance(prompt, list | tuple) and bool(prompt) and isinstance(prompt[0], Mapping)


def thinking_of(tokenizer: Tokenizer, prompt: Sequence[int]) -> Thinking | None:
    """How the answer to a rendered conversation thinks. None: its model does not, or the template has ended
    the thought already.
    """
    form = tokenizer.template_traits.thought
    if form is None:
        return None
    end = b"".join(spelled(tokenizer, token) for token in prompt[-_END:]).rstrip()
    if any(end.endswith(mark) for mark in spellings(tokenizer, form.closing)):
        return None
    begun = any(end.endswith(mark) for mark in spellings(tokenizer, form.opening))
    return Thinking(form.opening, form.closing, form.after, begun)
