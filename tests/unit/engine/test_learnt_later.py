"""A question that led to nothing is learnt from later, unless one of its candidates began right. So is a
round of which it turned out that nobody can be asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from foredraft import Engine, SamplingParams
from foredraft.planner import StaticPlanner
from foredraft.protocols import RequestView
from foredraft.testing import FakeModel, ScriptedDrafter
from foredraft.types import Draft, DraftLimit, Load, Round
from planner_doubles import VOCABULARY, PlannerAround, counting

PROMPT = [1, 2, 3]


class Asking(PlannerAround):
    """Asks in every second round, verifies nothing, and rests in the round after."""

    def __init__(self) -> None:
        super().__init__(StaticPlanner())
        self._asks = False
        self.log: list[str] = []

    def rests(self, requests: Sequence[RequestView], load: Load) -> bool:
        self._asks = not self._asks
        self.log.append("asks" if self._asks else "rests")
        return not self._asks

    def limits(
        self, requests: Sequence[RequestView], drafters: Sequence[str], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        self.log.append("limits")
        return super().limits(requests, drafters, load)

    def choose(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> list[Draft | None]:
        return [None] * len(requests)

    def rests_next(self, requests: Sequence[RequestView], load: Load) -> bool:
        return True

    def observe(self, measured: Round) -> None:
        self.log.append("observe")


def log_of(drafter: ScriptedDrafter, tokens: int = 5) -> list[str]:
    """What happens in the four rounds of decoding, without what is learnt at the end."""
    planner = Asking()
    engine = Engine(FakeModel(VOCABULARY, logits=counting), drafters=[drafter], planner=planner)
    engine.generate(PROMPT, SamplingParams(max_tokens=tokens))
    return planner.log


@pytest.mark.parametrize("found", [None, (0,)], ids=["nothing", "wrong"])
def test_it_waits_for_the_next_question(found: tuple[int, ...] | None) -> None:
    wrong = ScriptedDrafter(lambda _: None if found is None else Draft(found, "s"), name="s")
    first, second = ["asks", "limits", "rests"], ["asks", "observe", "observe", "limits", "rests"]
    assert log_of(wrong) == [*first, *second, "observe", "observe"]


def test_what_began_right_is_learnt_from_at_once() -> None:
    right = ScriptedDrafter(lambda history: Draft(((history[-1] + 1) % (VOCABULARY - 1),), "s"), name="s")
    first, second = ["asks", "limits", "observe", "rests"], ["asks", "observe", "limits", "observe", "rests"]
    assert log_of(right) == [*first, *second, "observe"]


def test_who_wants_successors_hears_at_once() -> None:
    curious = ScriptedDrafter(lambda _: None, name="s")
    curious.successors = 2
    assert log_of(curious)[:4] == ["asks", "limits", "observe", "rests"]


class Unable(Asking):
    """Never rests, and never asks."""

    def rests(self, requests: Sequence[RequestView], load: Load) -> bool:
        self.log.append("awake")
        return False

    def limits(
        self, requests: Sequence[RequestView], drafters: Sequence[str], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        self.log.append("limits")
        return {}


def test_a_round_in_which_nobody_could_ask_waits_for_the_next() -> None:
    planner = Unable()
    drafter = ScriptedDrafter(lambda _: None, name="s")
    engine = Engine(FakeModel(VOCABULARY, logits=counting), drafters=[drafter], planner=planner)
    engine.generate(PROMPT, SamplingParams(max_tokens=4))
    again = ["awake", "observe", "limits"]
    assert planner.log == ["awake", "limits", *again, *again, "observe"]
