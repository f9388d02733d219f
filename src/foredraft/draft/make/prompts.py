"""What a model is asked for answers to learn from: prompts of the user's, and its own. Those that ship are
for measuring (`foredraft bench`, `foredraft draft score`): they are never learned from.

A chat model writes prompts itself when it is given its chat template up to where the user's message would
begin (Magpie, Xu et al. 2024, arXiv 2406.08464). So no data is needed at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from foredraft.bench.workloads import PromptCase, load_prompts, shipped_prompts
from foredraft.draft.make.answers import completed, never
from foredraft.engine.engine import Engine
from foredraft.engine.prompt import encode_chat
from foredraft.errors import ConfigError, RequestError
from foredraft.protocols import Tokenizer
from foredraft.types import FinishReason, SamplingParams

LONGEST_WRITTEN = 160
"""Tokens of a prompt that the model writes. One that is cut off there is dropped: it is no whole message."""

BEGINNING = 24
"""Tokens that a model without a chat template writes as the beginning of a text."""

_MARK = "foredraftmark"
_LEAST_CHARACTERS = 8


def asked(tokenizer: Tokenizer, cases: Sequence[PromptCase]) -> Iterator[list[int]]:
    """The token ids of the first turn of each case. A model without a chat template continues the text."""
    for case in cases:
        if tokenizer.chat_template is None:
            yield tokenizer.encode(case.turns[0], special=True, add_bos=True)
        else:
            yield encode_chat(tokenizer, [{"role": "user", "content": case.turns[0]}]).tokens


def of_file(engine: Engine, path: Path) -> list[tuple[str, list[int]]]:
    """(source, prompt) of a file of prompts. Raises ConfigError, also where all are for measuring."""
    measuring = for_measuring(engine.model.tokenizer)
    found = [
        prompt
        for prompt in asked(engine.model.tokenizer, load_prompts(path))
        if tuple(prompt) not in measuring
    ]
    if not found:
        raise ConfigError(
            f"All prompts in {path} ship with Foredraft; they are for measuring, and not learned from.",
            hint="Give others, or leave --prompts out.",
        )
    return [("file", prompt) for prompt in found]


def for_measuring(tokenizer: Tokenizer) -> set[tuple[int, ...]]:
    """The prompts that ship."""
    return {tuple(prompt) for prompt in asked(tokenizer, shipped_prompts())}


class OwnPrompts:
    """Prompts that the model writes itself."""

    def __init__(self, engine: Engine) -> None:
        """Raises ConfigError if the chat template leaves no place for a message."""
        self._engine = engine
        self._chat = engine.model.tokenizer.chat_template is not None
        self._opening = _opening(engine.model.tokenizer)

    def write(self, count: int, over: Callable[[], bool] = never) -> Iterator[list[int]]:
        """At most `count` prompts, as token ids up to where the answer begins; no more when the time is
        `over`.
        """
        most = LONGEST_WRITTEN if self._chat else BEGINNING
        params = SamplingParams(temperature=1.0, top_p=0.995, max_tokens=most)
        requests = [self._engine.add(self._opening, params) for _ in range(count)]
        for _, found in completed(self._engine, requests, over):
            prompt = self._message(found.text, found.finish_reason) if self._chat else None
            if not self._chat and found.finish_reason is FinishReason.LENGTH:
                prompt = [*self._opening, *found.tokens]
            if prompt is not None:
                yield prompt

    def _message(self, text: str, reason: FinishReason) -> list[int] | None:
        """The prompt with this message; None if it is not one that a person might send."""
        text = text.strip()
        if reason is not FinishReason.STOP or len(text) < _LEAST_CHARACTERS or "\ufffd" in text:
            return None
        try:
            return encode_chat(self._engine.model.tokenizer, [{"role": "user", "content": text}]).tokens
        except RequestError:
            return None


def _opening(tokenizer: Tokenizer) -> list[int]:
    """What comes before the user's message."""
    if tokenizer.chat_template is None:
        return tokenizer.encode("", special=True, add_bos=True) or tokenizer.encode("\n")
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": _MARK}])
    before, found, _ = rendered.partition(_MARK)
    if not found:
        raise ConfigError(
            "The model's chat template changes messages, so the model cannot write prompts itself.",
            hint="Give prompts: --prompts FILE, or recorded answers: --from FILE",
        )
    return tokenizer.encode_rendered(before, [])


def unseen(
    prompts: Iterator[tuple[str, list[int]]], seen: set[tuple[int, ...]], count: int
) -> Iterator[tuple[str, list[int]]]:
    """The first `count` that are not among `seen`, which grows by them."""

    def fresh() -> Iterator[tuple[str, list[int]]]:
        for source, prompt in prompts:
            if tuple(prompt) not in seen:
                seen.add(tuple(prompt))
                yield source, prompt

    return islice(fresh(), count)
