"""What a grammar forces is drafted, also where the drafters beside it find nothing and take time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from foredraft import Engine, SamplingParams
from foredraft.drafters.grammar import GrammarDrafter
from foredraft.protocols import RequestView
from foredraft.sampling.thought import answer_guide
from foredraft.testing import FakeModel
from foredraft.types import Constraint, Draft, DraftLimit, Outcome, SpeculationStats
from http_server import writing_logits
from matrix import nightly
from planner_doubles import auto_planner

NAMES = [f"description_{letter}" for letter in "abcdefgh"]
TEXT = {"type": "string", "minLength": 40, "maxLength": 60}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": dict.fromkeys(NAMES, TEXT),
    "required": NAMES,
    "additionalProperties": False,
}
"""Keys that are forced, each after a long text that is free."""


class NothingToSay:
    """A drafter that finds nothing, and takes `ms` of the model's time for it."""

    name = "nothing"

    def __init__(self, model: FakeModel, ms: float) -> None:
        self._model, self._ms = model, ms
        self.seconds = 0.0

    def clock(self) -> float:
        return self._model.clock() + self.seconds

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        self.seconds += self._ms / 1e3
        return [None] * len(requests)

    def start(self, request: RequestView) -> None: ...

    def observe(self, request: RequestView, outcome: Outcome) -> None: ...

    def stop(self, request: RequestView) -> None: ...

    def close(self) -> None: ...


def answers(ms: float) -> list[SpeculationStats]:
    """Three answers in the schema, beside a drafter that takes so long; a plain round takes 10 ms."""
    model = FakeModel(logits=writing_logits(end=-60))
    beside = NothingToSay(model, ms)
    grammar = GrammarDrafter(lambda params: answer_guide(params, model.tokenizer))
    params = SamplingParams(max_tokens=800, constraint=Constraint("json_schema", json.dumps(SCHEMA)))
    with Engine(model, drafters=[grammar, beside], planner=auto_planner(), clock=beside.clock) as engine:
        return [engine.generate("hello", params).speculation for _ in range(3)]


def test_beside_cheap_drafters_it_is_drafted_at_once() -> None:
    found, best = answers(0.1)[-1], answers(0.0)[-1]
    assert best.drafters["grammar"].accepted > 100
    assert found.drafters["grammar"] == best.drafters["grammar"]
    assert found.rounds == best.rounds


@pytest.mark.parametrize("ms", [0.4, *(pytest.param(ms, marks=nightly) for ms in (0.2, 0.3, 0.5))])
def test_beside_expensive_drafters_nearly_all_of_it_is_drafted(ms: float) -> None:
    """Attempts back off in the free text; that tokens are forced is a reason to attempt at once."""
    found, best = answers(ms)[-1], answers(0.0)[-1]
    assert found.drafters["grammar"].accepted > 0.9 * best.drafters["grammar"].accepted
