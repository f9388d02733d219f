"""What is kept of requests is kept apart by adapter: cells, texts, acceptance, costs, profiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foredraft import Engine, SamplingParams
from foredraft.engine.loading import Kept
from foredraft.engine.prefix.disk import open_disk
from foredraft.engine.profile_store import ProfileStore, key_of
from foredraft.errors import ConfigError, RequestError
from foredraft.planner import AutoPlanner
from foredraft.planner.cost import CostCurve
from foredraft.planner.draft_model import DraftModels
from foredraft.protocols import UNKEPT, Proposer, RequestView, scope_with
from foredraft.testing import FakeModel, ScriptedDrafter
from foredraft.types import Draft, Load, Outcome, Round

PROMPT = [65, 66, 67, 68, 69, 70, 71, 72]
LIMITS = SamplingParams(max_tokens=12, ignore_eos=True)


def model(**options: Any) -> FakeModel:
    return FakeModel(adapters=("one", "two"), **options)


def test_a_request_is_computed_with_its_adapter_alone_and_beside_others() -> None:
    with Engine(model()) as engine:
        names = ("one", "", "two", "one")
        alone = [engine.generate(PROMPT, LIMITS, adapter=name) for name in names]
        requests = [engine.add(PROMPT, LIMITS, adapter=name) for name in names]
        together = engine.run(requests)
    assert [one.tokens for one in alone] == [one.tokens for one in together]
    assert len({one.tokens for one in alone}) == 3


def test_cells_of_another_adapter_are_not_used() -> None:
    with Engine(model(sequences=2)) as engine:
        assert engine.generate(PROMPT, LIMITS, adapter="one").usage.cached_tokens == 0
        assert engine.generate(PROMPT, LIMITS, adapter="two").usage.cached_tokens == 0
        assert engine.generate(PROMPT, LIMITS, adapter="one").usage.cached_tokens == len(PROMPT) - 1
        assert engine.generate(PROMPT, LIMITS).usage.cached_tokens == 0


def test_cells_on_disk_are_those_of_the_adapter(tmp_path: Path) -> None:
    text = [65 + token % 20 for token in range(300)]

    def cached(adapter: str, made: FakeModel) -> int:
        engine = Engine(made)
        engine._keep(Kept(disk=open_disk(made, tmp_path, 10**8)))
        with engine:
            return engine.generate(text, LIMITS, adapter=adapter).usage.cached_tokens

    assert cached("one", model()) == 0
    assert cached("one", model()) > 0
    assert cached("two", model()) == 0
    assert cached("", model()) == 0
    other = model()
    other.adapters = {"one": "another file"}
    assert cached("one", other) == 0


def test_an_unknown_adapter_is_refused_with_the_list() -> None:
    with Engine(model()) as engine, pytest.raises(RequestError, match="no adapter 'three'") as caught:
        engine.add(PROMPT, adapter="three")
    assert caught.value.hint == "Loaded are: one, two."
    with Engine(FakeModel()) as engine, pytest.raises(RequestError, match="no adapter 'one'"):
        engine.add(PROMPT, adapter="one")


def test_requests_that_name_none_get_the_engines_own() -> None:
    with Engine(model()) as engine:
        one, none = (engine.generate(PROMPT, LIMITS, adapter=name).tokens for name in ("one", ""))
        engine._keep(Kept(adapter="one"))
        assert engine.generate(PROMPT, LIMITS).tokens == one
        assert engine.generate(PROMPT, LIMITS, adapter="").tokens == none


def test_a_default_has_to_be_one_of_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="adapter='two'"):
        Engine.load(tmp_path, adapters={"one": "one.gguf"}, adapter="two")
    with pytest.raises(ConfigError, match="not valid"):
        Engine.load(tmp_path, adapters={"one": []})


def test_scopes_tell_adapters_apart() -> None:
    scopes = {scope_with(scope, key) for scope in ("", "user") for key in ("", "a", "b")}
    assert len(scopes) == 6
    assert scope_with("user", "") == "user"
    assert scope_with(f"{UNKEPT}trial", "a").startswith(UNKEPT)


def test_what_was_drafted_is_counted_by_adapter() -> None:
    with Engine(model(), drafters=[ScriptedDrafter(lambda _: [1])]) as engine:
        for name in ("one", "one", ""):
            engine.generate(PROMPT, LIMITS, adapter=name)
        found = engine.by_adapter
    assert {name: stats.requests for name, stats in found.items()} == {"one": 2, "": 1}
    assert found["one"].drafted == 2 * found[""].drafted > 0
    with Engine(FakeModel()) as engine:
        engine.generate(PROMPT, LIMITS)
        assert not engine.by_adapter


# --- the planner ------------------------------------------------------------------------------------------


def view(number: int, adapter: str) -> RequestView:
    return RequestView(number, [1, 2, 3], prompt_length=2, adapter=adapter)


def test_what_is_learnt_of_drafts_is_of_one_adapter() -> None:
    planner = AutoPlanner(FakeModel().capabilities)
    draft = Draft((7, 8), "suffix", confidence=(0.5, 0.5))
    for number, adapter in ((1, "one"), (2, "")):
        planner.start(view(number, adapter), ())

    def probability(request: int) -> float:
        return planner.acceptance_of(request).survivals(request, [draft], 3)[0][0]

    before = probability(2)
    for _ in range(40):
        probability(1)
        planner.acceptance_of(1).score(1, (9,))
    assert probability(1) < 0.5 * before
    assert probability(2) == before


def test_only_the_usual_adapters_acceptance_is_kept() -> None:
    planner = AutoPlanner(FakeModel().capabilities)
    planner.usual_adapter = "one"
    planner.start(view(1, ""), ())
    acceptance = planner.acceptance_of(1)
    acceptance.survivals(1, [Draft((7,), "suffix")], 3)
    acceptance.score(1, (7,))
    assert planner.state()["acceptance"]["counts"] == {}  # type: ignore[index]


def rounds(curve: CostCurve, load: Load, sizes: dict[int, float], turns: int = 8) -> None:
    for _ in range(turns):
        for rows, ms in sizes.items():
            curve.learn(Round(load, rows, {}, ms, 0.0, ((1, Outcome(0, (1,))),) if rows == 1 else ()))


def test_costs_are_of_the_adapters_in_a_forward() -> None:
    curve = CostCurve()
    alone, adapted = Load(1, 0, 100), Load(1, 0, 100, adapters=("one",))
    rounds(curve, alone, {1: 4.0, 4: 8.0})
    rounds(curve, adapted, {1: 8.0, 4: 24.0})
    assert curve.baseline_ms == pytest.approx(8.0, rel=0.1)
    assert curve.costs(4)[3] == pytest.approx(3.0, rel=0.15)
    curve.focus(alone)
    assert curve.baseline_ms == pytest.approx(4.0, rel=0.1)
    assert curve.costs(4)[3] == pytest.approx(2.0, rel=0.15)


def test_each_further_adapter_is_expected_to_be_a_pass() -> None:
    curve = CostCurve()
    rounds(curve, Load(1, 0, 100), {1: 4.0, 2: 4.4, 4: 5.0})
    curve.focus(Load(2, 0, 100))
    together = curve.forward_cost(2)
    curve.focus(Load(2, 0, 100, adapters=("", "one")))
    assert together < 1.3
    assert curve.forward_cost(2) == pytest.approx(2.0, abs=0.05)


def test_profiles_are_of_one_adapter(tmp_path: Path) -> None:
    info, store = FakeModel().info, ProfileStore(tmp_path)
    names = {store._path(key_of(info, adapter)).name for adapter in ("", "a", "b")}
    assert len(names) == 3
    assert store._path(key_of(info)) == store._path(replace(key_of(info), adapter=""))


def test_a_drafter_rests_with_the_adapter_it_does_not_pay_for() -> None:
    models = DraftModels()
    models.add(Proposer("draft-model", lambda _: 0, costly=True))
    models.focus(("one",))
    models._drafters["draft-model"].worth.wait = 5
    assert models.resting("draft-model")
    models.focus(())
    assert not models.resting("draft-model")
    models.focus(("one",))
    assert models.resting("draft-model")
