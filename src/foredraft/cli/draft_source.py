"""What `foredraft draft score` scores on: prompts to answer, recorded answers, or a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft.bench.trace import TraceSet, read_traces
from foredraft.bench.workloads import PromptCase, load_prompts, select
from foredraft.cli.ngram import read_pieces
from foredraft.draft.passages import LENGTH, Passage
from foredraft.draft.sources import answers, check_length, recorded, written
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.protocols import Model

PROMPTS = 12
"""Prompts that are answered if `--limit` does not say how many."""

PIECES = 24
"""Recorded answers, or passages of a text, that are scored if `--limit` does not say how many."""


@dataclass(frozen=True, slots=True)
class Source:
    """What to score on: the text or the traces in a file, or answers to `cases`."""

    temperatures: tuple[float, ...]
    limit: int
    tokens: int
    seed: int
    text: str = ""
    traces: TraceSet | None = None
    cases: tuple[PromptCase, ...] = ()
    origin: str = ""

    @property
    def count(self) -> int:
        """Steps of progress, about."""
        if self.text:
            pieces = min(self.limit, 1 + len(self.text) // (3 * LENGTH))
        else:
            pieces = len(self.cases) if self.traces is None else min(self.limit, len(self.traces.traces))
        return pieces * len(self.temperatures)

    @property
    def noun(self) -> str:
        """What is counted."""
        return "recorded answer" if self.traces else "passage" if self.text else "answer"

    @property
    def assumed(self) -> str:
        """What is assumed of texts that were there before: it is nowhere said how they were chosen."""
        if self.traces is None and not self.text:
            return ""
        both = " and ".join(f"{temperature:g}" for temperature in self.temperatures)
        return (
            f"that the model chooses at temperature {both}, at every place of a text that it may not have "
            "written so: at which temperature it was written is not known"
        )

    def check(self, target: Model) -> None:
        """Raises ConfigError for traces of other tokens than the target's."""
        if self.traces is not None and self.traces.vocab_hash != target.info.vocab_hash:
            raise ConfigError(
                f"{self.origin} holds traces of {self.traces.model}, which has other tokens than "
                f"{target.info.name}.",
                hint="Record answers of this model: foredraft bench --record FILE",
            )

    def passages(self, engine: Engine, room: int) -> Iterator[list[Passage]]:
        """The passages, a few at a time; at most `room` tokens each."""
        if self.traces is not None:
            return recorded(self.traces, self.temperatures, seed=self.seed, room=room, limit=self.limit)
        if self.text:
            tokens = engine.encode(self.text)
            check_length(tokens)
            return written(tokens, self.temperatures, seed=self.seed, room=room, limit=self.limit)
        return answers(engine, self.cases, self.temperatures, tokens=self.tokens, seed=self.seed)


def take_source(options: dict[str, Any]) -> Source:
    """Pop what it is scored on, read before a model is loaded. Raises ConfigError."""
    text, traces, prompts = (options.pop(name) for name in ("text", "traces", "prompts"))
    given = [flag for flag, path in (("--text", text), ("--traces", traces), ("--prompts", prompts)) if path]
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} exclude each other.", hint="Leave one of them out.")
    temperature, limit = options.pop("temperature"), options.pop("limit")
    temperatures = (0.0,) if temperature == 0 else (0.0, temperature)
    tokens, seed = options.pop("tokens"), options.pop("seed")
    if text is not None:
        content = "".join(_pieces(text, (limit or PIECES) + 4))
        if not content.strip():
            raise ConfigError(f"{text} is empty.", hint="Give a text file with some pages.")
        return Source(temperatures, limit or PIECES, tokens, seed, text=content, origin=str(text))
    if traces is not None:
        found = read_traces(traces)
        if not any(trace.output for trace in found.traces):
            raise ConfigError(
                f"There are no answers in {traces}.", hint="Record some: foredraft bench --record"
            )
        return Source(temperatures, limit or PIECES, tokens, seed, traces=found, origin=str(traces))
    cases = select(load_prompts(prompts), limit=limit or PROMPTS)
    return Source(temperatures, len(cases), tokens, seed, cases=tuple(cases), origin=str(prompts or ""))


def _pieces(path: Path, count: int) -> Iterator[str]:
    """As much of a text as `count` pieces can need: a token has 16 letters at most on average."""
    if not path.exists():
        raise ConfigError(f"There is no file {path}.")
    if not path.is_file():
        raise ConfigError(f"{path} is not a file.", hint="Name a text file.")
    left = 16 * LENGTH * count
    for piece in read_pieces(path):
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return
