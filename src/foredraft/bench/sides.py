"""What takes part in a live benchmark: an engine with one speculation setting, or anything that answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol, runtime_checkable

from foredraft.bench.results import Run, Sample
from foredraft.bench.slices import Turns, whole
from foredraft.engine.engine import Engine
from foredraft.engine.streams import fold
from foredraft.errors import BackendError
from foredraft.planner import AutoPlanner
from foredraft.types import TARGET, Completion, Event, Message, SamplingParams

Messages = Sequence[Message]
Learnt = Mapping[str, object]
"""What a side has learnt of texts."""


class Side(Protocol):
    """One setting of a comparison."""

    @property
    def name(self) -> str: ...

    def restart(self) -> None:
        """Forget what was learnt from the answers so far, as far as that is in our power."""
        ...

    def answer(self, messages: Messages, params: SamplingParams) -> Sample:
        """Generate an answer and time it. Raises ForedraftError."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Learning(Protocol):
    """A side that can know again what it had learnt once."""

    def learnt(self) -> Learnt: ...

    def recall(self, learnt: Learnt) -> None:
        """What is passed is known again, as before the answer that is next."""
        ...


class EngineAnswer:
    """An answer of an engine, generated in turns."""

    def __init__(self, events: Iterator[Event], prompt: Sequence[int]) -> None:
        self._turns = Turns(events)
        self._prompt = tuple(prompt)

    def go_on(self, seconds: float) -> Sample | None:
        """Generate for about so long; the sample when it is complete. Raises BackendError if it failed."""
        if not self._turns.read(seconds):
            return None
        sample = sample_of(fold(self._turns.seen))
        return replace(
            sample,
            prompt=self._prompt,
            prompt_ms=self._turns.prompt_ms,
            decode_ms=self._turns.decode_ms,
        )


class EngineSide:
    """An engine of our own with a speculation string. What is learnt from a prompt is kept for the next."""

    def __init__(self, speculation: str, engine: Engine) -> None:
        self.name = speculation
        self.engine = engine
        self.scope = ""
        """Whose prompts these are: answers of another scope share no KV cells."""

    def restart(self) -> None:
        """New drafters and a new planner; the model and its KV cache stay."""
        self.engine.set_speculation(self.name)

    def learnt(self) -> Learnt:
        """What the planner has learnt of texts; what drafters remember of them is no part of it."""
        planner = self.engine.planner
        return planner.state() if isinstance(planner, AutoPlanner) else {}

    def recall(self, learnt: Learnt) -> None:
        planner = self.engine.planner
        if isinstance(planner, AutoPlanner):
            planner.load_state(learnt)

    def begin(self, messages: Messages, params: SamplingParams) -> EngineAnswer:
        """An answer that waits for its first turn."""
        prompt = self.engine.encode(messages)
        return EngineAnswer(self.engine.stream(prompt, params, scope=self.scope), prompt)

    def answer(self, messages: Messages, params: SamplingParams) -> Sample:
        return whole(self.begin(messages, params))

    def close(self) -> None:
        self.engine.close()


def sample_of(completion: Completion) -> Sample:
    """A completion as a sample. Raises BackendError for one that failed."""
    if completion.error:
        raise BackendError(f"Generation failed: {completion.error}")
    timings, speculation = completion.timings, completion.speculation
    return Sample(
        text=completion.text,
        count=timings.predicted_n,
        decode_ms=timings.predicted_ms,
        tokens=completion.tokens,
        prompt_tokens=completion.usage.prompt_tokens,
        prompt_ms=timings.prompt_ms,
        rounds=speculation.rounds,
        drafts=sum(stats.drafts for stats in speculation.drafters.values()),
        drafted=timings.draft_n,
        accepted=timings.draft_n_accepted,
        accepted_by_depth=speculation.accepted_by_depth,
        spent_ms=speculation.ms,
        runs=runs(completion.origins),
        exact=speculation.exact,
    )


def runs(origins: Sequence[str]) -> tuple[Run, ...]:
    """The rounds of an answer, from who proposed each of its tokens.

    A round ends with a token of the target's own, except a last one that was cut inside its draft. The
    first token is the prompt's and belongs to no round.
    """
    found: list[Run] = []
    accepted, drafter = 0, ""
    for origin, group in groupby(origins[1:]):
        count = len(list(group))
        if origin == TARGET:
            found.append(Run(accepted, drafter))
            found.extend([Run(0)] * (count - 1))
            accepted, drafter = 0, ""
        else:
            accepted, drafter = accepted + count, origin
    return (*found, Run(accepted, drafter)) if accepted else tuple(found)
