"""The first promise with trees: merged, cut and shared between requests, they leave the text as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import torch_cases
import torch_factory
from foredraft import Engine, SamplingParams
from foredraft.config import Stage
from foredraft.planner import StaticPlanner
from foredraft.planner.draft_model import MAX_SAVED
from foredraft.planner.records import RoundRecord, width_of
from foredraft.protocols import Drafter, DrafterContext, Model, Planner, RequestView
from foredraft.registry import create_drafter
from foredraft.sampling.coupled import CoupledSampler
from foredraft.testing import FakeModel, assert_lossless, drafter_context, markov_logits
from foredraft.types import Choice, Draft, Load, Logits, Round
from matrix import matrix
from planner_doubles import PlannerAround, auto_planner

VOCABULARY = 12
LANGUAGE = markov_logits(VOCABULARY, order=2, seed=1, scale=2.5)
NOISE = markov_logits(VOCABULARY, order=2, seed=2, scale=1.0)
PROMPTS = [[0, 1, 2, 0, 1, 2, 0, 1], [5], [3, 3, 3, 3], [7, 8, 9, 7, 8, 9], [2, 4, 6, 8, 10] * 3]
STAGES = {"suffix": {"min-p": "0"}, "recycle": {"min-p": "0", "max": "12"}, "draft-model": {"model": "small"}}
GREEDY = SamplingParams(seed=4, max_tokens=90, ignore_eos=True)
SETTINGS = {
    "greedy": GREEDY,
    "seeded": replace(GREEDY, temperature=0.8),
    "truncated": replace(GREEDY, temperature=0.9, top_k=8, top_p=0.95, repetition_penalty=1.1),
    "rejection": replace(GREEDY, temperature=0.8, verify="rejection"),
}


def draft_logits(prefix: Sequence[int]) -> Logits:
    """A language much like the target's."""
    mixed: Logits = LANGUAGE(prefix) + NOISE(prefix)
    return mixed


class CheapRows(PlannerAround):
    """`auto` where a row costs next to nothing, always the same, so that trees pay and runs decide alike."""

    slope = 0.01

    def __init__(self, *, trees: bool = True) -> None:
        planner = auto_planner(trees=trees)
        planner.load_state({"saved": MAX_SAVED})  # the draft models here are as large as their targets
        super().__init__(planner)

    def observe(self, rounds: Sequence[Round]) -> None:
        super().observe([self._always_alike(measured) for measured in rounds])

    def _always_alike(self, measured: Round) -> Round:
        drafting = dict.fromkeys(measured.draft_ms, 0.01)
        forward = 10.0 + 10.0 * self.slope * (measured.rows - 1)
        return replace(
            measured, forward_ms=forward, sample_ms=0.1, plan_ms=0.1, late_ms=0.0, draft_ms=drafting
        )


class DearerRows(CheapRows):
    """Rows at a price at which trees are cut."""

    slope = 0.15


def target() -> FakeModel:
    return FakeModel(VOCABULARY, logits=LANGUAGE, sequences=4, max_batch=64, context_length=400)


def context(model: Model, small: Model | None = None) -> DrafterContext:
    def load(path: str, *, sequences: int, context_length: int) -> Model:
        return small or FakeModel(
            VOCABULARY, logits=draft_logits, sequences=sequences, context_length=context_length, name=path
        )

    sampler = CoupledSampler(model.info.vocab_size, model.tokenizer.end_tokens)
    return replace(drafter_context(model), sampler=sampler, load_model=load)


def drafters(model: Model, small: Model | None = None) -> list[Drafter]:
    return [create_drafter(Stage(name, options), context(model, small)) for name, options in STAGES.items()]


def decided(planner: Planner, params: SamplingParams, *, concurrent: bool) -> list[RoundRecord]:
    """What was decided while the prompts were answered."""
    model, heard = target(), list[RoundRecord]()
    with Engine(model, drafters=drafters(model), planner=planner) as engine:
        engine.decisions.watch(heard.append)
        if concurrent:
            engine.run([engine.add(prompt, params) for prompt in PROMPTS])
        else:
            for prompt in PROMPTS:
                engine.generate(list(prompt), params)
    return heard


@matrix(
    settings=["greedy", "seeded", "truncated"],
    planner=[CheapRows, DearerRows],
    concurrent=[False, True],
    ids={"concurrent": ["alone", "concurrent"]},
)
def test_trees_leave_the_text_as_it_is(settings: str, planner: type[CheapRows], concurrent: bool) -> None:
    origins = assert_lossless(
        target, drafters, PROMPTS, SETTINGS[settings], concurrent=concurrent, planner=planner
    )
    assert sum(count for origin, count in origins.items() if origin != "target") > 0


@pytest.mark.parametrize("concurrent", [False, True], ids=["alone", "concurrent"])
def test_trees_of_several_sources_are_built_and_shown_as_such(concurrent: bool) -> None:
    heard = decided(CheapRows(), SETTINGS["seeded"], concurrent=concurrent)
    choices = [choice for decision in heard for choice in decision.choices]
    wide = [choice for choice in choices if choice.width > 1]
    assert any("+" in (choice.source or "") for choice in wide)
    assert all(choice.length > choice.width or choice.length == choice.width > 1 for choice in wide)
    assert any(choice.accepted > 1 for choice in wide)
    assert any(candidate.width > 1 for choice in choices for candidate in choice.candidates)
    longest = [max((its.length for its in choice.candidates), default=0) for choice in choices]
    assert all(choice.length <= most for choice, most in zip(choices, longest, strict=True))


@pytest.mark.parametrize("settings", ["seeded", "rejection"])
def test_without_trees_or_where_the_rule_samples_nothing_is_merged(settings: str) -> None:
    heard = decided(CheapRows(trees=settings == "rejection"), SETTINGS[settings], concurrent=False)
    choices = [choice for decision in heard for choice in decision.choices]
    assert any(choice.source for choice in choices)
    assert not any("+" in (choice.source or "") for choice in choices)


class Widest(PlannerAround):
    """Verifies the widest draft there is in every round."""

    widths: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__(StaticPlanner())

    def choose(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> list[Choice]:
        super().choose(requests, candidates, load)
        chosen = [
            max(drafts, key=lambda draft: width_of(draft.parents), default=None) for drafts in candidates
        ]
        self.widths.extend(width_of(draft.parents) for draft in chosen if draft)
        return [Choice(draft) for draft in chosen]


@matrix(
    temperature=[0.0, 0.9],
    concurrent=[False, True],
    planner=[CheapRows, Widest],
    ids={"concurrent": ["alone", "concurrent"]},
)
def test_trees_leave_the_text_of_a_torch_model_as_it_is(
    tmp_path: Path, temperature: float, concurrent: bool, planner: type[CheapRows | Widest]
) -> None:
    path = torch_factory.make_model(tmp_path / "target", "llama", seed=1)
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, torch_factory.VOCAB, 9).tolist() * 3 for _ in range(3)]
    params = SamplingParams(temperature=temperature, seed=6, max_tokens=130, ignore_eos=True)
    Widest.widths.clear()

    def load() -> Model:
        return torch_cases.load(path, sequences=4)

    def drafting(model: Model) -> list[Drafter]:
        if planner is Widest:  # a draft model of the target's weights leaves few rounds to others
            return [create_drafter(Stage("recycle", STAGES["recycle"]), context(model))]
        return drafters(model, torch_cases.load(path, sequences=4))

    origins = assert_lossless(load, drafting, prompts, params, concurrent=concurrent, planner=planner)
    accepted = sum(count for origin, count in origins.items() if origin != "target")
    assert accepted > 0
    if planner is Widest:
        assert sum(width > 1 for width in Widest.widths) > 10, "trees were verified"
