"""The choices of text completions: of chunks, from the engine's events, and of answers, from chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from foredraft.engine.scoring import PromptEvent
from foredraft.protocols import Tokenizer
from foredraft.server.generation import openai_finish, stop_reason
from foredraft.server.openai.chunks import Chunk
from foredraft.server.openai.logprobs import AnswerText, completion_logprobs, joined, unscored
from foredraft.types import Event, FinishEvent, TokenEvent


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt's text, repeated before the answer. `scored`: its tokens, if they are scored."""

    text: str = ""
    scored: Sequence[int] = ()


class CompletionWriter:
    """Turns one answer's events into choices of chunks. An echo is the first of them."""

    def __init__(self, index: int, tokenizer: Tokenizer, echo: Echo) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._echo = echo
        self._begun = not echo.text and not echo.scored
        self._places = AnswerText(tokenizer)
        self._scores = self._first_score()

    def _first_score(self) -> Chunk | None:
        if not self._echo.scored:
            return None
        first = self._echo.scored[0]
        return unscored(self._tokenizer, first, self._places.add(first))

    def begin(self) -> Iterator[Chunk]:
        """The choices that come before the first event."""
        if not self._begun and self._scores is None:
            yield from self._echoed()

    def write(self, events: Sequence[Event]) -> list[Chunk]:
        """The choices of chunks for these events, at most one."""
        whole: Chunk | None = None
        for event in events:
            for choice in self._write(event):
                whole = add_choice(whole, choice)
        return [] if whole is None else [whole]

    def _write(self, event: Event) -> Iterator[Chunk]:
        if isinstance(event, PromptEvent):
            place = self._places.add(event.token)
            self._scores = joined(self._scores, completion_logprobs(self._tokenizer, event, place))
            return
        if not self._begun:
            yield from self._echoed()
        logprobs = None
        if isinstance(event, TokenEvent) and event.logprob is not None:
            place = self._places.add(event.token)
            logprobs = completion_logprobs(self._tokenizer, event, place)
        if isinstance(event, FinishEvent):
            choice = choice_of(self._index, event.text, finish=openai_finish(event.reason), logprobs=logprobs)
            yield choice | stop_reason(event.reason)
        elif event.text or logprobs:
            yield choice_of(self._index, event.text, logprobs=logprobs)

    def _echoed(self) -> Iterator[Chunk]:
        self._begun = True
        self._places.skip_to(len(self._echo.text))
        yield choice_of(self._index, self._echo.text, logprobs=self._scores)


def choice_of(
    index: int, text: str, *, finish: str | None = None, logprobs: Chunk | None = None
) -> dict[str, Any]:
    """A choice in OpenAI's form, of a chunk or of a whole answer."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def add_choice(before: Chunk | None, choice: Chunk) -> Chunk:
    """Fold the choice of a chunk into the choice of the complete answer."""
    answer = before or choice_of(choice["index"], "")
    answer["text"] += choice["text"]
    answer["finish_reason"] = choice["finish_reason"] or answer["finish_reason"]
    answer |= {key: choice[key] for key in ("stop_reason",) if key in choice}
    answer["logprobs"] = joined(answer["logprobs"], choice["logprobs"])
    return answer
