"""Models whose arithmetic depends on the batch: the bytes may change with drafts, the distribution does not.

Texts sampled with drafts and without, from different seeds, are compared by a chi-square test. A model that
favours what was drafted, as a faulty verifier would, fails it. The same seeds compared token by token say
how often rounding decides: with noise of a standard deviation of 0.03, about what bf16 leaves of logits
around 8, one token in 80 was another one; in a mixture of experts in fp32, whose logits move by 1e-6, none
of 1,440. `pytest --junitxml=FILE` writes both rates down.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torch_factory
from foredraft import Engine, SamplingParams
from foredraft.planner import StaticPlanner
from foredraft.protocols import Model
from foredraft.testing import FakeModel, ScriptedDrafter, markov_logits
from foredraft.types import Completion, Logits, Rows, VerifyRule
from matrix import matrix, nightly

RUNS = 2000
AT_ONCE = 100
TAIL = 3.719
"""Standard deviations that a normal variable exceeds with a chance of 1e-4."""

NOISE = 0.03
PROMPT = (0, 1, 2, 0, 1)
PARAMS = SamplingParams(max_tokens=4, temperature=1.0, top_k=4, ignore_eos=True)
LONG = replace(PARAMS, max_tokens=60)

LANGUAGE = markov_logits(4, order=2, seed=21, scale=1.0)

Text = tuple[int, ...]

# --- models --------------------------------------------------------------------------------------------


class Uneven(FakeModel):
    """Its logits have noise in them that is another one for each number of rows in a forward."""

    def __init__(self) -> None:
        super().__init__(4, logits=self._noisy, sequences=4, context_length=256)
        self.with_capabilities(batch_invariant=False, invariance_note="noise by the number of rows")
        self._rows = 0
        self._known: dict[tuple[int, ...], Logits] = {}

    def forward(self, batch: Sequence[Rows]) -> Logits:
        self._rows = sum(len(rows.tokens) for rows in batch)
        return super().forward(batch)

    def _noisy(self, prefix: Sequence[int]) -> Logits:
        key = (self._rows, *prefix[-3:])
        if key not in self._known:
            noise = np.random.default_rng([5, *key]).standard_normal(4)
            self._known[key] = (LANGUAGE(prefix) + NOISE * noise).astype(np.float32)
        return self._known[key]


@pytest.fixture(scope="module")
def experts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_factory.make_model(tmp_path_factory.mktemp("experts") / "model", "gpt_oss")


@pytest.fixture
def experts(experts_folder: Path) -> Callable[[], Model]:
    """A mixture of experts, whose products are transformers' own; skips where they are exact after all."""
    from torch_cases import load

    def make() -> Model:
        model = load(experts_folder, "fp32", sequences=8, probe=True)
        if model.capabilities.batch_invariant:
            pytest.skip(f"here the model is exact: {model.capabilities.invariance_note}")
        return model

    return make


def favour_drafts(model: Any, by: float) -> None:
    """Plant a fault: of rows verified together each thinks more of the token that was drafted after it, whose
    logit is larger `by` so much.
    """
    forward = model.forward

    def biased(batch: Sequence[Rows]) -> Logits:
        logits: Logits = forward(batch).copy()
        first = 0
        for rows in batch:
            for row in range(rows.logits - 1):
                logits[first + row, rows.tokens[len(rows.tokens) - rows.logits + row + 1]] += by
            first += rows.logits
        return logits

    model.forward = biased


# --- samples -------------------------------------------------------------------------------------------


class Guess:
    """Drafts two tokens, each the one that most often followed the two before it in given texts."""

    def __init__(self, texts: Iterable[Text]) -> None:
        followers: dict[Text, Counter[int]] = defaultdict(Counter)
        for text in texts:
            whole = (*PROMPT, *text)
            for at in range(len(PROMPT), len(whole)):
                followers[whole[at - 2 : at]][whole[at]] += 1
        self._likeliest = {before: counts.most_common(1)[0][0] for before, counts in followers.items()}

    def __call__(self, tokens: Sequence[int]) -> list[int]:
        text = list(tokens[-2:])
        for _ in range(2):
            token = self._likeliest.get(tuple(text[-2:]))
            if token is None:
                break
            text.append(token)
        return text[2:]


def answers(
    model: Model, params: SamplingParams, seeds: range, guess: Guess | None = None
) -> list[Completion]:
    """An answer for each seed, as many at once as the model has sequences, with the drafts of `guess`."""
    drafters = [ScriptedDrafter(guess)] if guess else []
    with Engine(model, drafters=drafters, planner=StaticPlanner()) as engine:
        return [
            completion
            for first in range(0, len(seeds), AT_ONCE)
            for completion in engine.run(
                [
                    engine.add(list(PROMPT), replace(params, seed=seed))
                    for seed in seeds[first : first + AT_ONCE]
                ]
            )
        ]


def texts(completions: Iterable[Completion]) -> Counter[Text]:
    return Counter(completion.tokens for completion in completions)


@pytest.fixture(scope="module")
def plain() -> Counter[Text]:
    """What the uneven model says without drafts."""
    return texts(answers(Uneven(), PARAMS, range(RUNS)))


def excess(one: Counter[Text], other: Counter[Text]) -> float:
    """The chi-square statistic of two samples of one size, that they have the same distribution, in standard
    deviations, by Wilson and Hilferty's approximation (1931). Texts seen less than ten times are pooled.
    """
    assert one.total() == other.total()
    cells = [(one[text], other[text]) for text in one | other if one[text] + other[text] >= 10]
    rare = [(one[text], other[text]) for text in one | other if one[text] + other[text] < 10]
    if rare:
        cells.append((sum(count for count, _ in rare), sum(count for _, count in rare)))
    statistic = sum((first - second) ** 2 / (first + second) for first, second in cells)
    freedom = len(cells) - 1
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


def different_tokens(one: Sequence[Completion], other: Sequence[Completion]) -> tuple[int, int]:
    """(texts that differ, tokens compared): each pair as far as its first difference, after which the texts
    are about something else.
    """
    different = tokens = 0
    for first, second in zip(one, other, strict=True):
        pairs = list(zip(first.tokens, second.tokens, strict=True))
        same = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
        different += same is not None
        tokens += len(pairs) if same is None else same + 1
    return different, tokens


# --- tests ---------------------------------------------------------------------------------------------


@matrix(
    strength=1,
    rule=["match", "rejection", "block"],
    fault=[False, True],
    ids={"fault": ["as it is", "faulty"]},
)
def test_drafts_leave_the_distribution_as_it_is_and_a_fault_would_be_seen(
    plain: Counter[Text], rule: VerifyRule, fault: bool
) -> None:
    model = Uneven()
    if fault:
        favour_drafts(model, 0.5)
    params, seeds = replace(PARAMS, verify=rule), range(RUNS, 2 * RUNS)
    drafted = answers(model, params, seeds, Guess(plain.elements()))
    assert sum(completion.usage.accepted_prediction_tokens for completion in drafted) > RUNS / 2
    assert not any(completion.speculation.exact for completion in drafted)
    assert (excess(plain, texts(drafted)) > TAIL) == fault


def test_noise_decides_now_and_then_and_is_not_called_exact(
    record_property: Callable[[str, object], None],
) -> None:
    alone = answers(Uneven(), LONG, range(200))
    drafted = answers(Uneven(), LONG, range(200), Guess(texts(alone)))
    different, tokens = different_tokens(alone, drafted)
    record_property("different tokens, noise of 0.03", different / tokens)
    assert 0.001 < different / tokens < 0.03
    assert not any(completion.speculation.exact for completion in drafted)


def test_without_noise_no_token_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rate above counts is the noise, and nothing else."""
    monkeypatch.setitem(globals(), "NOISE", 0.0)
    alone = answers(Uneven(), LONG, range(50))
    drafted = answers(Uneven(), LONG, range(50), Guess(texts(alone)))
    assert different_tokens(alone, drafted) == (0, 3000)


@nightly
def test_a_mixture_of_experts_keeps_its_distribution(experts: Callable[[], Model]) -> None:
    params, runs = replace(PARAMS, max_tokens=3, top_k=3), RUNS // 2
    plain = texts(answers(experts(), params, range(runs)))
    seeds, guess = range(runs, 2 * runs), Guess(plain.elements())
    drafted, model = answers(experts(), params, seeds, guess), experts()
    favour_drafts(model, 1.0)
    assert sum(completion.usage.accepted_prediction_tokens for completion in drafted) > runs / 8
    assert excess(plain, texts(drafted)) < TAIL
    assert excess(plain, texts(answers(model, params, seeds, guess))) > TAIL, "a fault would be seen"


def test_a_mixture_of_experts_rarely_says_something_else(
    experts: Callable[[], Model], record_property: Callable[[str, object], None]
) -> None:
    alone = answers(experts(), LONG, range(24))
    drafted = answers(experts(), LONG, range(24), Guess(texts(alone)))
    different, tokens = different_tokens(alone, drafted)
    record_property("different tokens, experts in fp32", different / tokens)
    assert sum(completion.usage.accepted_prediction_tokens for completion in drafted) > 20
    assert different / tokens < 0.01
    assert drafted[0].speculation.exact is False
