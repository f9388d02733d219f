"""What a head learns from: a model's own answers, as a file of JSON lines that survives a kill.

Each line is one `Answer`. Lines are only ever added, so the number of an answer in the file never changes,
and what a crash left of the last line is dropped when the file is opened again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from foredraft.engine.engine import Engine
from foredraft.engine.streams import fold
from foredraft.errors import ConfigError, ContextLengthError
from foredraft.types import Completion, Event, FinishEvent, FinishReason, SamplingParams

TEMPERATURES = (0.0, 0.8)
"""Of the answers, in turns. A head drafts for both: what is greedy, and what is sampled."""

SHORTEST_CUT = 16
"""Tokens of an answer that the end of the time cut off, at least."""


def never() -> bool:
    """The time is not over."""
    return False


@dataclass(frozen=True, slots=True)
class Answer:
    """Token ids of a prompt, as the model reads it, and of its own answer; `source` is where the prompt came
    from.
    """

    source: str
    temperature: float
    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.answer


class AnswerFile:
    """The answers of a work folder. `answers` are those that are in the file, in order, and `tokens` how many
    all of them have, without prompts.
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a file that holds anything else; OSError."""
        self.path = path
        self.answers: list[Answer] = []
        self.tokens = 0
        if path.exists():
            self._read()

    def _read(self) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        for number, line in enumerate(whole.split(b"\n"), 1):
            if line:
                self._note([_parsed(self.path, number, line)])

    def add(self, answers: Sequence[Answer]) -> None:
        """Add answers. Raises OSError."""
        lines = "".join(json.dumps(asdict(answer)) + "\n" for answer in answers)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            self.path.chmod(0o600)  # also where it was there before; it may hold a user's own texts
            file.write(lines.encode())
        self._note(answers)

    def _note(self, answers: Sequence[Answer]) -> None:
        self.answers += answers
        self.tokens += sum(len(answer.answer) for answer in answers)

    def prompts(self) -> set[tuple[int, ...]]:
        """The prompts that have an answer."""
        return {answer.prompt for answer in self.answers}


def _parsed(path: Path, number: int, line: bytes) -> Answer:
    try:
        row = json.loads(line)
        return Answer(
            str(row["source"]), float(row["temperature"]), tuple(row["prompt"]), tuple(row["answer"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}, line {number}: this is not an answer ({error}).",
            hint="Remove the line, or choose another work folder.",
        ) from None


def answers_to(
    engine: Engine,
    prompts: Sequence[tuple[str, list[int]]],
    first: int,
    *,
    tokens: int,
    over: Callable[[], bool] = never,
) -> Iterator[Answer]:
    """The model's answers to (source, prompt) pairs, each when it is complete; none of a prompt that does not
    fit. What is there of one when the time is `over` is an answer, too, if it is long enough.

    `first` is the number of the first of them, which decides its temperature. Raises what the engine does.
    """
    asked: dict[int, tuple[str, float, list[int]]] = {}
    for number, (source, prompt) in enumerate(prompts, first):
        temperature = TEMPERATURES[number % len(TEMPERATURES)]
        params = SamplingParams(temperature=temperature, max_tokens=tokens, stop_repetition=True)
        try:
            asked[engine.add(prompt, params)] = (source, temperature, prompt)
        except ContextLengthError:
            continue
    for request, found in completed(engine, asked, over):
        source, temperature, prompt = asked[request]
        least = SHORTEST_CUT if found.finish_reason is FinishReason.ABORT else 1
        if found.finish_reason is not FinishReason.ERROR and len(found.tokens) >= least:
            yield Answer(source, temperature, tuple(prompt), found.tokens)


def completed(
    engine: Engine, requests: Iterable[int], over: Callable[[], bool] = never
) -> Iterator[tuple[int, Completion]]:
    """(request, completion) of each request when it ends: all of them end when the time is `over`."""
    events: dict[int, list[Event]] = {request: [] for request in requests}
    while events:
        ending = over()
        new = [event for request in events for event in engine.abort(request)] if ending else engine.step()
        for event in new:
            events[event.request].append(event)
        for request in [request for request, told in events.items() if told and _is_end(told[-1])]:
            yield request, fold(events.pop(request))
        if ending:
            return


def _is_end(event: Event) -> bool:
    return isinstance(event, FinishEvent)
