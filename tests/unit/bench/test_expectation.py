"""What a live run should have gained: its answers replayed on its own curve."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from foredraft import Engine
from foredraft.bench.asking_cost import AskingCost
from foredraft.bench.curves import Curve, Curves
from foredraft.bench.expectation import FACTS, deepest, expectations, measured_asking
from foredraft.bench.live import measure
from foredraft.bench.passes import Passes
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.results import Row
from foredraft.bench.sides import EngineSide
from foredraft.bench.toll import charge
from foredraft.bench.trace import Trace, TraceSet
from foredraft.bench.workloads import PromptCase
from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.planner.fixed import FixedPlanner
from foredraft.testing import FakeModel, markov_logits
from foredraft.types import SamplingParams

FLAT = {1: 10.0, 2: 10.1, 4: 10.2, 8: 10.4, 16: 11.0}
STEEP = {1: 10.0, 2: 20.0, 4: 40.0, 8: 80.0, 16: 160.0}
SETTINGS = ("auto", "ngram-simple:n=3,m=4")


def engine() -> Engine:
    return Engine(FakeModel(6, logits=markov_logits(6, order=1, scale=8.0), context_length=600))


@pytest.fixture
def rows() -> list[Row]:
    return answered(96)


def answered(tokens: int) -> list[Row]:
    sides = [EngineSide(name, engine()) for name in ("off", *SETTINGS)]
    cases = [PromptCase(name, "chat", (name,)) for name in ("abc", "fed")]
    found = list(measure(sides, Passes(cases, 2), SamplingParams(max_tokens=tokens, ignore_eos=True)))
    return [replace(row, sample=replace(row.sample, decode_ms=950.0, spent_ms={})) for row in found]


def test_answers_that_repeat_themselves_gain_on_a_flat_curve(rows: list[Row]) -> None:
    facts = expectations(rows, engine(), Curves({256: FLAT}), SETTINGS, "off")
    assert list(facts) == list(SETTINGS)
    for found in facts.values():
        assert list(found) == list(FACTS)
        assert 1.5 < float(found["replayed"]) <= float(found["hindsight bound"]) * 1.01
    # The live run took as long with drafts as without: it was what the replay gained that was lost.
    assert int(facts["auto"]["live ÷ replayed"].rstrip("%")) == pytest.approx(
        100 / float(facts["auto"]["replayed"]), abs=1
    )


def test_on_a_steep_curve_nothing_was_to_be_gained(rows: list[Row]) -> None:
    found = expectations(rows, engine(), Curves({256: STEEP}), SETTINGS, "off")["auto"]
    assert float(found["replayed"]) == pytest.approx(1.0, abs=0.03)
    assert float(found["hindsight bound"]) == pytest.approx(1.0, abs=0.01)


def test_time_beside_the_forward_makes_drafts_worth_more(rows: list[Row]) -> None:
    slow = [
        replace(row, sample=replace(row.sample, spent_ms={"verify": 5.0, "other": 950.0})) for row in rows
    ]
    with_overhead = expectations(slow, engine(), Curves({256: STEEP}), SETTINGS, "off")["auto"]
    without = expectations(rows, engine(), Curves({256: STEEP}), SETTINGS, "off")["auto"]
    assert float(with_overhead["hindsight bound"]) > float(without["hindsight bound"])


def test_what_cannot_be_replayed_is_left_out(rows: list[Row]) -> None:
    assert expectations(rows, engine(), Curves({256: FLAT}), ["auto;draft-model:model=x.gguf"], "off") == {}
    assert expectations(rows, engine(), Curves({}), SETTINGS, "off") == {}
    unknown = [replace(row, sample=replace(row.sample, prompt=())) for row in rows]
    assert expectations(unknown, engine(), Curves({256: FLAT}), SETTINGS, "off") == {}


def test_an_answer_costs_what_forwards_do_at_its_depth(rows: list[Row]) -> None:
    middle = deepest(rows)
    assert 48 < middle < 96
    flat_there = Curves({1: STEEP, middle: FLAT, 5000: STEEP})
    deeper = expectations(rows, engine(), flat_there, SETTINGS, "off")["auto"]
    assert deeper == expectations(rows, engine(), Curves({256: FLAT}), SETTINGS, "off")["auto"]


def test_changes_of_size_are_part_of_what_was_to_be_expected(rows: list[Row]) -> None:
    """V(n) includes a change of size, which one draft after another of the same length saves: more is to be
    expected of a setting that drafts so, whatever it costs.
    """
    static = SETTINGS[1]
    found = [
        float(expectations(rows, engine(), Curves({256: FLAT}, resize), [static], "off")[static]["replayed"])
        for resize in (0.0, 0.2)
    ]
    assert found[1] > 1.05 * found[0]


def spending(rows: list[Row], setting: str, ms: float) -> list[Row]:
    """Plain rounds took 2 ms besides their forward; the rounds of `setting` that, and `ms` more."""
    took = {"off": 2.0, setting: 2.0 + ms}
    found = [row for row in rows if row.setting in took]
    spent = [{"verify": 1.0, "other": row.sample.rounds * took[row.setting]} for row in found]
    return [
        replace(row, sample=replace(row.sample, spent_ms=part))
        for row, part in zip(found, spent, strict=True)
    ]


def test_a_static_setting_is_charged_what_its_rounds_took_beyond_plain_ones(rows: list[Row]) -> None:
    static = SETTINGS[1]

    def replayed(ms: float) -> float:
        found = expectations(spending(rows, static, ms), engine(), Curves({256: FLAT}), [static], "off")
        return float(found[static]["replayed"])

    free, dear = replayed(0.0), replayed(6.0)
    # Every round takes 12 ms, and each but those without room for a draft 6 more.
    assert dear == pytest.approx(free * 12.2 / 18.2, rel=0.05)
    assert replayed(-1.0) == free, "less than plain rounds is noise"


def learnt(asking: AskingCost) -> AdaptivePlanner:
    """A planner of an engine in which asking took that long."""
    rng = random.Random(5)
    passage = tuple(rng.choices(range(500), k=450))
    output = (*rng.choices(range(500), k=50), *passage[:250])
    texts = TraceSet("made up", 500, "h", (), [Trace("copy", "c", passage, output)])
    model = ReplayModel(texts, Curve("c", {1: 1.0, 64: 20.0}, asking_ms=asking))
    with Engine(model, clock=model.clock) as other:
        other.set_speculation("auto")
        charge(other, model)
        other.generate(list(passage), SamplingParams(max_tokens=300, ignore_eos=True))
        assert isinstance(other.planner, AdaptivePlanner)
        return other.planner


def test_what_asking_took_is_known_to_the_planner_of_the_run() -> None:
    found = measured_asking(learnt(AskingCost({"suffix": 0.3, "recycle": 0.1}, choosing=0.2)))
    assert found is not None
    assert [found.of("suffix"), found.of("recycle")] == pytest.approx([0.3, 0.1], rel=0.05)
    assert found.choosing == pytest.approx(0.2, rel=0.05)
    assert found.resting == 0.0
    assert measured_asking(AdaptivePlanner()) is None
    assert measured_asking(FixedPlanner()) is None


def test_a_round_without_a_question_took_what_it_did_beyond_a_plain_one(rows: list[Row]) -> None:
    """Before its forward of 10 ms 0.3 ms, and a plain one 0.1."""
    plain = [row.sample for row in rows if row.setting == "off"]
    rounds = sum(sample.count - 1 for sample in plain)
    spent = {"verify": 10.0 * rounds / len(plain), "other": 0.1 * rounds / len(plain)}
    samples = [replace(sample, spent_ms=spent) for sample in plain]
    found = measured_asking(learnt(AskingCost({"suffix": 0.3}, choosing=0.2, resting=0.3)), samples)
    assert found is not None
    assert found.resting == pytest.approx(0.2, rel=0.05)


def test_auto_is_charged_what_its_planner_measured() -> None:
    rows = answered(480)

    def replayed(asking: AskingCost) -> float:
        planners = {"auto": learnt(asking)}
        found = expectations(rows, engine(), Curves({256: FLAT}), ["auto"], "off", planners=planners)
        return float(found["auto"]["replayed"])

    assert replayed(AskingCost({"suffix": 0.3}, choosing=3.0)) < 0.95 * replayed(AskingCost({"suffix": 0.05}))
