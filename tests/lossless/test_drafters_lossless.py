"""The first promise, for every built-in drafter: the same tokens as without it, whatever the settings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from foredraft import Engine, SamplingParams
from foredraft.config import Stage
from foredraft.planner import StaticPlanner
from foredraft.protocols import Drafter, DrafterContext, Model, Planner
from foredraft.registry import create_drafter, drafter_names
from foredraft.sampling.coupled import CoupledSampler
from foredraft.testing import FakeModel, LogitsFunction, assert_lossless, drafter_context, markov_logits
from foredraft.types import Logits, Round, Rows, VerifyRule
from matrix import matrix
from planner_doubles import PlannerAround, auto_planner

VOCABULARY = 12
DRAFT_MODEL = "draft-model"
MODEL_FREE = sorted(set(drafter_names()) - {DRAFT_MODEL, "grammar"})
SHORT = {
    "ngram-simple": {"n": "2", "m": "5"},
    "ngram-map-k": {"n": "2", "m": "5"},
    "ngram-map-k4v": {"n": "2", "m": "5"},
    "ngram-mod": {"n": "2", "min": "0", "max": "5"},
    "recycle": {"min-p": "0", "max": "6"},
}
"""Options with which a short text over a small alphabet has matches."""
ALONE = ["alone", "concurrent"]

PROMPTS = [[0, 1, 2, 0, 1, 2, 0, 1], [5], [3, 3, 3, 3], [7, 8, 9, 7, 8, 9], [2, 4, 6, 8, 10] * 3]


def target_logits(prefix: Sequence[int]) -> Logits:
    return LANGUAGE(prefix)


LANGUAGE = markov_logits(VOCABULARY, order=2, seed=1, scale=2.5)
NOISE = markov_logits(VOCABULARY, order=2, seed=2, scale=1.0)


def draft_logits(prefix: Sequence[int]) -> Logits:
    """A language much like the target's."""
    mixed: Logits = LANGUAGE(prefix) + NOISE(prefix)
    return mixed


def target() -> FakeModel:
    return FakeModel(
        VOCABULARY,
        logits=target_logits,
        sequences=4,
        max_batch=48,
        context_length=400,
        features=("layer:1", "next"),
    )


def context_for(model: Model, drafting: FakeModel | None = None) -> DrafterContext:
    """What the engine gives a drafter: the coupled sampler, and a loader that returns `drafting`."""

    def load(path: str, *, sequences: int, context_length: int) -> Model:
        return drafting or FakeModel(
            VOCABULARY, logits=draft_logits, sequences=sequences, context_length=context_length, name=path
        )

    sampler = CoupledSampler(model.info.vocab_size, model.tokenizer.end_tokens)
    return replace(drafter_context(model), sampler=sampler, load_model=load)


def drafter(name: str, model: Model) -> Drafter:
    options = {"model": "small", "max": "5"} if name == DRAFT_MODEL else SHORT.get(name, {})
    return create_drafter(Stage(name, options), context_for(model))


class ClockworkPlanner(PlannerAround):
    """`auto` on a machine whose forwards take what they always take, so that every run decides alike."""

    def __init__(self) -> None:
        super().__init__(auto_planner())

    def observe(self, rounds: Sequence[Round]) -> None:
        super().observe([self._always_alike(measured) for measured in rounds])

    def _always_alike(self, measured: Round) -> Round:
        drafting = dict.fromkeys(measured.draft_ms, 0.01)
        forward = 10.0 + 0.5 * (measured.rows - 1)
        return replace(
            measured, forward_ms=forward, sample_ms=0.1, plan_ms=0.1, late_ms=0.0, draft_ms=drafting
        )


PLANNERS: dict[str, type[Planner]] = {"static": StaticPlanner, "auto": ClockworkPlanner}

LONG = SamplingParams(seed=4, max_tokens=70, ignore_eos=True)
SETTINGS = {
    "greedy": LONG,
    "warm": replace(LONG, temperature=0.8),
    "everything": replace(
        LONG,
        temperature=0.9,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        top_k=8,
        top_p=0.95,
        min_p=0.01,
        logit_bias={3: 1.5, 5: -math.inf, 7: -2.0},
    ),
    "min_tokens": SamplingParams(temperature=0.8, seed=7, min_tokens=25, max_tokens=60),
    "stop_tokens": SamplingParams(temperature=0.6, seed=2, stop_tokens=(4,), max_tokens=60, min_tokens=3),
}


@matrix(
    name=[*MODEL_FREE, DRAFT_MODEL],
    planner=PLANNERS,
    settings=SETTINGS,
    concurrent=[False, True],
    ids={"concurrent": ALONE},
)
def test_every_drafter_leaves_the_text_as_it_is(
    name: str, planner: str, settings: str, concurrent: bool
) -> None:
    origins = assert_lossless(
        target,
        lambda model: [drafter(name, model)],
        PROMPTS,
        SETTINGS[settings],
        concurrent=concurrent,
        planner=PLANNERS[planner],
    )
    if settings == "greedy" and name != "prediction":
        assert origins.get(name, 0) > 0, "something was drafted and accepted"


@matrix(planner=PLANNERS, settings=SETTINGS, concurrent=[False, True], ids={"concurrent": ALONE})
def test_all_drafters_together_leave_the_text_as_it_is(planner: str, settings: str, concurrent: bool) -> None:
    origins = assert_lossless(
        target,
        lambda model: [drafter(name, model) for name in (*MODEL_FREE, DRAFT_MODEL)],
        PROMPTS,
        SETTINGS[settings],
        concurrent=concurrent,
        planner=PLANNERS[planner],
    )
    if settings in ("greedy", "warm"):
        assert sum(origins.values()) > origins["target"]


@matrix(
    planner=PLANNERS,
    settings=SETTINGS,
    concurrent=[False, True],
    trees=[False, True],
    ids={"concurrent": ALONE, "trees": ["chains", "trees"]},
)
def test_recycled_chains_and_trees_leave_the_text_as_it_is(
    planner: str, settings: str, concurrent: bool, trees: bool
) -> None:
    shapes: set[bool] = set()

    class Watched(FakeModel):
        def forward(self, batch: Sequence[Rows]) -> Logits:
            shapes.update(rows.parents is not None for rows in batch if rows.start and len(rows.tokens) > 1)
            return super().forward(batch)

    origins = assert_lossless(
        lambda: Watched(VOCABULARY, logits=target_logits, max_batch=48, context_length=400, trees=trees),
        lambda model: [drafter("recycle", model)],
        PROMPTS,
        SETTINGS[settings],
        concurrent=concurrent,
        planner=PLANNERS[planner],
    )
    if settings == "greedy":
        assert origins["recycle"] > 0
        assert shapes == {trees} or planner == "auto", "`auto` also verifies the best chain of a tree"
        assert True not in shapes or trees


@matrix(strength=1, planner=PLANNERS, settings=SETTINGS)
def test_predicted_outputs_leave_the_text_as_it_is(planner: str, settings: str) -> None:
    accepted = 0
    for prompt in PROMPTS:
        model = target()
        with Engine(model) as plain:
            expected = plain.generate(prompt, SETTINGS[settings]).tokens
        wrong = (*expected[:6], 1, *expected[7:20], 2, 2, *expected[20:])
        for prediction in (expected, wrong, expected[5:], (1, 1, 1)):
            model = target()
            with Engine(
                model, drafters=[drafter("prediction", model)], planner=PLANNERS[planner]()
            ) as engine:
                result = engine.generate(prompt, SETTINGS[settings], prediction=prediction)
            assert result.tokens == expected
            accepted += result.usage.accepted_prediction_tokens
    assert accepted > 0


# --- distributions -------------------------------------------------------------------------------------

SMALL = 4
"""Tokens 0 to 2, and 3, which ends the text."""
LENGTH = 4
RUNS, NIGHTLY_RUNS = 1500, 4000
TAIL = 3.719
"""Standard deviations that a normal variable exceeds with a chance of 1e-4."""


SMALL_LANGUAGE = markov_logits(SMALL, order=2, seed=11, scale=1.0)
SMALL_NOISE = markov_logits(SMALL, order=1, seed=12, scale=0.7)


def small_target(prefix: Sequence[int]) -> Logits:
    return SMALL_LANGUAGE(prefix)


def small_draft(prefix: Sequence[int]) -> Logits:
    mixed: Logits = SMALL_LANGUAGE(prefix) + SMALL_NOISE(prefix)
    return mixed


def softmax(logits: Logits, params: SamplingParams) -> list[float]:
    """The distribution that the parameters ask for, from its definition."""
    scaled = np.asarray(logits, np.float64) / params.temperature
    if params.top_k:
        scaled[np.argsort(-scaled)[params.top_k :]] = -np.inf
    weights = np.exp(scaled - scaled.max())
    return [float(weight) for weight in weights / weights.sum()]


def texts(
    logits: LogitsFunction, prompt: tuple[int, ...], params: SamplingParams, left: int
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every text of at most `left` tokens after the prompt, with its probability."""
    for token, chance in enumerate(softmax(logits(prompt), params)):
        if chance == 0.0:
            continue
        ended = left == 1 or (token == SMALL - 1 and not params.ignore_eos)
        if ended:
            yield (token,), chance
            continue
        for rest, probability in texts(logits, (*prompt, token), params, left - 1):
            yield (token, *rest), chance * probability


def excess(counts: Counter[tuple[int, ...]], exact: dict[tuple[int, ...], float]) -> float:
    """The chi-square statistic in standard deviations, by Wilson and Hilferty's approximation (1931).

    Texts expected fewer than five times are pooled. An impossible text is infinitely far off.
    """
    total = counts.total()
    if not set(counts) <= set(exact):
        return math.inf
    cells = [(counts[text], total * chance) for text, chance in exact.items() if total * chance >= 5]
    rare = [(counts[text], total * chance) for text, chance in exact.items() if total * chance < 5]
    if rare:
        cells.append((sum(count for count, _ in rare), sum(expected for _, expected in rare)))
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    freedom = len(cells) - 1
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


CASES = {
    "plain": SamplingParams(temperature=1.0, max_tokens=LENGTH, ignore_eos=True),
    "ends": SamplingParams(temperature=0.8, max_tokens=LENGTH),
    "top_k": SamplingParams(temperature=1.2, top_k=3, max_tokens=LENGTH, ignore_eos=True),
}


@matrix(strength=1, rule=["match", "rejection", "block"], case=CASES)
def test_the_distribution_of_texts_is_the_target_s(rule: VerifyRule, case: str, is_nightly: bool) -> None:
    runs = NIGHTLY_RUNS if is_nightly else RUNS
    prompt, params = (0, 1), replace(CASES[case], verify=rule)
    model = FakeModel(SMALL, logits=small_target)
    drafting = FakeModel(SMALL, logits=small_draft)
    small = create_drafter(Stage(DRAFT_MODEL, {"model": "small"}), context_for(model, drafting))
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    with Engine(model, drafters=[small], planner=StaticPlanner()) as engine:
        for seed in range(runs):
            result = engine.generate(prompt, replace(params, seed=seed))
            counts[result.tokens] += 1
            accepted += result.usage.accepted_prediction_tokens
    assert accepted > runs / 3, "drafts took part"
    right, wrong = (dict(texts(logits, prompt, params, LENGTH)) for logits in (small_target, small_draft))
    assert sum(right.values()) == pytest.approx(1.0)
    assert excess(counts, right) < TAIL
    assert excess(counts, wrong) > TAIL, "the drafts' distribution could have been told from it"
