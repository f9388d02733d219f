"""What a head learns from: a model's own answers, as a file of JSON lines that survives a kill.

Each line is one `Answer`. Lines are only ever added, so the number of an answer in the file never changes,
and what a crash left of the last line is dropped when the file is opened again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError, ContextLengthError
from foredraft.types import FinishReason, SamplingParams

TEMPERATURES = (0.0, 0.8)
"""Of the answers, in turns. A head drafts for both: what is greedy, and what is sampled."""


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
    """The answers of a work folder. `answers` are those that are in the file, in order."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a file that holds anything else; OSError."""
        self.path = path
        self.answers: list[Answer] = []
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
                self.answers.append(_parsed(self.path, number, line))

    def add(self, answers: Sequence[Answer]) -> None:
        """Add answers. Raises OSError."""
        lines = "".join(json.dumps(asdict(answer)) + "\n" for answer in answers)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            self.path.chmod(0o600)  # also where it was there before; it may hold a user's own texts
            file.write(lines.encode())
        self.answers += answers

    @property
    def tokens(self) -> int:
        """Tokens of all answers together, without prompts."""
        return sum(len(answer.answer) for answer in self.answers)

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
    engine: Engine, prompts: Sequence[tuple[str, list[int]]], first: int, *, tokens: int
) -> Iterator[Answer]:
    """The model's answers to (source, prompt) pairs, all at once; none of a prompt that does not fit.

    `first` is the number of the first of them, which decides its temperature. Raises what the engine does.
    """
    asked: list[tuple[str, float, list[int], int]] = []
    for number, (source, prompt) in enumerate(prompts, first):
        temperature = TEMPERATURES[number % len(TEMPERATURES)]
        params = SamplingParams(temperature=temperature, max_tokens=tokens, stop_repetition=True)
        try:
            asked.append((source, temperature, prompt, engine.add(prompt, params)))
        except ContextLengthError:
            continue
    completions = engine.run([request for *_, request in asked])
    for (source, temperature, prompt, _), found in zip(asked, completions, strict=True):
        if found.finish_reason is not FinishReason.ERROR and found.tokens:
            yield Answer(source, temperature, tuple(prompt), found.tokens)
