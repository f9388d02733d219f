"""The draft-model drafter: right tokens, right KV bookkeeping for any outcome, no wasted forwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.errors import OutOfKVError
from foredraft.protocols import RequestView
from foredraft.sampling.coupled import CoupledSampler
from foredraft.sampling.sampler import RequestSampler
from foredraft.testing import FakeModel, FakeSampler, markov_logits, run_drafter
from foredraft.types import Draft, DraftLimit, Logits, Outcome, Rows, SamplingParams

VOCAB = 24
LOGITS = markov_logits(VOCAB, seed=3, scale=1.5)
PROMPT = (1, 2, 3, 4, 5)
FULL = DraftLimit(64)


def fake(**changes: Any) -> FakeModel:
    return FakeModel(VOCAB, **{"logits": LOGITS, "name": "small", **changes})


def drafter(model: FakeModel, max_tokens: int = 8, min_p: float = 0.0) -> DraftModelDrafter:
    # No end tokens: a random Markov chain would run into one at once.
    return DraftModelDrafter(
        model, CoupledSampler(VOCAB, frozenset()), max_tokens, min_p, end_tokens=frozenset()
    )


def view(id_: int = 1, tokens: Sequence[int] = PROMPT, params: SamplingParams | None = None) -> RequestView:
    return RequestView(id_, list(tokens), params or SamplingParams(), seed=id_, prompt_length=len(tokens))


def own_tokens(request: RequestView, count: int) -> list[int]:
    """What a target with the same logits generates next."""
    start = request.prompt_length
    sampler = RequestSampler(
        request.params,
        seed=request.seed,
        vocab_size=VOCAB,
        end_tokens=frozenset(),
        prompt=request.tokens[:start],
    )
    for token in request.tokens[start:]:
        sampler.advance(token)
    text: list[int] = []
    for _ in range(count):
        text.append(sampler.choose(LOGITS([*request.tokens, *text]), text))
    return text


def commit(made: DraftModelDrafter, request: RequestView, tokens: Sequence[int], draft: Draft | None) -> None:
    kept = len(request.tokens)
    request.tokens.extend(tokens)
    made.observe(request, Outcome(kept, tuple(tokens), draft))


def one(made: DraftModelDrafter, request: RequestView, limit: DraftLimit = FULL) -> Draft | None:
    (draft,) = made.draft([(request, limit)])
    if draft is not None:
        assert 0 < len(draft) <= limit.max_tokens
        assert len(draft.confidence) == len(draft)
        assert draft.source == "draft-model"
    return draft


def rows_fed(model: FakeModel) -> int:
    return sum(len(rows.tokens) for batch in model.forwards for rows in batch)


# --- acceptance ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=0.8, top_k=8, top_p=0.9, min_p=0.02),
        SamplingParams(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.5),
    ],
    ids=["greedy", "0.8", "truncated", "penalties"],
)
def test_a_model_drafting_for_itself_is_always_right(params: SamplingParams) -> None:
    model = fake()
    made, request = drafter(model), view(params=params)
    made.start(request)
    for _ in range(30):
        draft = one(made, request)
        assert draft is not None
        assert len(draft) == 8
        expected = own_tokens(request, 9)
        assert list(draft.tokens) == expected[:-1]
        commit(made, request, expected, draft)
    # Every committed token was computed once, but for the last draft token and the bonus token after it.
    assert rows_fed(model) == len(request.tokens) - 2


def test_replaying_a_greedy_text_accepts_every_draft() -> None:
    text = [*PROMPT, *own_tokens(view(), 100)]
    made = drafter(fake())
    drafts = run_drafter(made, text, prompt=len(PROMPT), limit=5)
    assert len(drafts) == pytest.approx(100 / 6, abs=1)
    position = len(PROMPT)
    for draft in drafts[:-1]:
        assert list(draft.tokens) == text[position : position + 5]
        position += 6


# --- limits --------------------------------------------------------------------------------------------


def test_stops_at_the_limit_and_at_its_own_maximum() -> None:
    made = drafter(fake(), max_tokens=6)
    for limit, expected in ((1, 1), (4, 4), (6, 6), (64, 6)):
        draft = one(made, view(), DraftLimit(limit))
        assert draft is not None
        assert len(draft) == expected
    assert one(made, view(), DraftLimit(0)) is None
    assert one(made, view(tokens=())) is None


def test_stops_before_survival_falls_under_the_limit() -> None:
    made = drafter(fake())
    whole = one(made, view())
    assert whole is not None
    survival = np.cumprod(whole.confidence)
    for length in (1, 3, 5):
        limit = DraftLimit(64, float(survival[length - 1]) * 0.999)
        cut = one(made, view(), limit)
        assert cut is not None
        assert cut == whole.cut(length)
    assert one(made, view(), DraftLimit(64, float(survival[0]) * 1.001)) is None


def test_min_p_ends_a_draft_before_an_unlikely_token() -> None:
    whole = one(drafter(fake()), view())
    assert whole is not None
    worst = int(np.argmin(whole.confidence))
    assert worst > 0
    cut = one(drafter(fake(), min_p=whole.confidence[worst] * 1.001), view())
    assert cut == whole.cut(worst)


def test_stops_after_an_end_token() -> None:
    whole = one(drafter(fake()), view())
    assert whole is not None
    end = whole.tokens[3]
    model = fake()
    made = DraftModelDrafter(model, CoupledSampler(VOCAB, frozenset({end})), 8, end_tokens=frozenset({end}))
    assert one(made, view()) == whole.cut(whole.tokens.index(end) + 1)


def test_a_sampled_draft_never_loses_a_token_for_its_own_probability() -> None:
    params = SamplingParams(temperature=1.0, verify="block")
    limit = DraftLimit(64, 0.02)
    lengths, unlikely = set(), 0
    for number in range(200):
        made = drafter(fake(), min_p=0.5)
        draft = one(made, view(number, params=params), limit)
        # The first token is always kept; a rule by its own probability would drop about half of them.
        assert draft is not None
        assert draft.probs is not None
        assert len(draft.probs) == len(draft)
        lengths.add(len(draft))
        unlikely += draft.probs[0][draft.tokens[0]] < 0.02
        survival = np.cumprod([float(q @ q) for q in draft.probs])
        assert draft.confidence == tuple(float(q @ q) for q in draft.probs)
        # It ends where survival, which does not look at the tokens drawn, falls under the limit.
        assert (survival[:-1] >= 0.02).all()
        assert len(draft) == 8 or survival[-1] < 0.02
    assert len(lengths) > 1
    assert unlikely > 0


def test_the_first_sampled_token_follows_q() -> None:
    params = SamplingParams(temperature=1.0, verify="rejection")
    weights = np.exp(LOGITS(PROMPT).astype(np.float64))
    q = weights / weights.sum()
    counts, trials = np.zeros(VOCAB), 3000
    made = drafter(fake(), min_p=0.9)
    for number in range(trials):
        request = view(number, params=params)
        draft = one(made, request, DraftLimit(1, 0.9))
        assert draft is not None
        counts[draft.tokens[0]] += 1
        made.stop(request)
    assert float(((counts - trials * q) ** 2 / (trials * q)).sum()) < 75.0  # 23 degrees of freedom, 1e-6


# --- batching and KV -----------------------------------------------------------------------------------


def test_one_forward_per_depth_for_all_requests() -> None:
    model = fake()
    made = drafter(model, max_tokens=4)
    requests = [view(number, [number, 2, 3]) for number in range(1, 4)]
    drafts = made.draft([(request, FULL) for request in requests])
    assert [len(batch) for batch in model.forwards] == [3, 3, 3, 3]
    alone = [one(drafter(fake(), max_tokens=4), request) for request in requests]
    assert drafts == alone
    assert None not in alone


def test_requests_leave_the_batch_at_their_own_limits() -> None:
    model = fake()
    drafts = drafter(model).draft(
        [
            (view(1), DraftLimit(1)),
            (view(2), DraftLimit(3)),
            (view(3), DraftLimit(0)),
            (view(4), DraftLimit(2)),
        ]
    )
    assert [None if draft is None else len(draft) for draft in drafts] == [1, 3, None, 2]
    assert [len(batch) for batch in model.forwards] == [3, 2, 1]


def test_a_long_prompt_is_fed_in_chunks_without_holding_up_others() -> None:
    model = fake(max_batch=16)
    made = drafter(model, max_tokens=3)
    long, short = view(1, [7, 8, 9] * 20), view(2)
    drafts = made.draft([(long, FULL), (short, FULL)])
    assert [None if draft is None else len(draft) for draft in drafts] == [3, 3]
    assert all(sum(len(rows.tokens) for rows in batch) <= 16 for batch in model.forwards)
    assert rows_fed(model) == (60 + 2) + (5 + 2)
    # The short one drafted while the long prompt went in: 65 rows left after the first chunk's 11.
    assert len(model.forwards) == 5 + 2
    assert [rows.logits for batch in model.forwards for rows in batch if rows.seq == 0][:4] == [0, 0, 0, 0]


def test_nothing_is_computed_before_the_first_draft() -> None:
    model = fake()
    made, request = drafter(model), view()
    made.start(request)
    commit(made, request, (6, 7, 8), None)
    assert model.forwards == []
    assert one(made, request) is not None
    assert model.forwards[0][0] == Rows(0, 0, [*PROMPT, 6, 7, 8], 1)


def test_after_a_pause_only_the_gap_is_fed() -> None:
    model = fake()
    made, request = drafter(model, max_tokens=1), view()
    one(made, request)
    for token in (6, 7, 8, 9):
        commit(made, request, (token,), None)
    model.forwards.clear()
    one(made, request)
    assert model.forwards == [(Rows(0, 5, [6, 7, 8, 9], 1),)]


def test_a_cut_draft_whose_bonus_token_was_drafted_feeds_the_last_token_again() -> None:
    # The planner verified one token of the draft; the target's own next token is the draft's second one.
    model = fake()
    made, request = drafter(model), view()
    draft = one(made, request)
    assert draft is not None
    commit(made, request, draft.tokens[:2], draft.cut(1))
    assert model.tokens(0) == request.tokens
    following = one(made, request)
    assert following is not None
    assert following.tokens[:6] == draft.tokens[2:]


def test_rejected_cells_are_dropped_and_agreed_ones_kept() -> None:
    model = fake()
    made, request = drafter(model), view()
    draft = one(made, request)
    assert draft is not None
    wrong = (draft.tokens[2] + 1) % VOCAB
    commit(made, request, (*draft.tokens[:2], wrong), draft)
    assert model.tokens(0) == [*PROMPT, *draft.tokens[:2]]


def test_removed_text_goes_from_the_cache() -> None:
    model = fake()
    made, request = drafter(model), view()
    draft = one(made, request)
    assert draft is not None
    commit(made, request, draft.tokens, draft)
    request.tokens[3:] = [9, 9]
    made.observe(request, Outcome(3, (9, 9)))
    assert model.tokens(0) == list(PROMPT[:3])
    assert one(made, request) == one(drafter(fake()), view(1, request.tokens))
    request.tokens[4:] = []
    made.observe(request, Outcome(4, ()))
    assert model.tokens(0) == request.tokens
    assert one(made, request) == one(drafter(fake()), view(1, request.tokens))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["draft", "commit", "remove"]),
        st.integers(0, 2),
        st.integers(0, 9),
        st.lists(st.integers(0, VOCAB - 1), max_size=4),
    ),
    max_size=25,
)


@given(steps=STEPS)
def test_bookkeeping_survives_any_history(steps: list[tuple[str, int, int, list[int]]]) -> None:
    """Whatever happens, drafts equal those of a fresh drafter, and no agreed cell is computed twice."""
    model = fake(sequences=3, max_batch=7)
    made = drafter(model, max_tokens=4)
    requests = [view(number) for number in range(3)]
    latest: dict[int, Draft | None] = {}
    for action, which, amount, tokens in steps:
        request = requests[which]
        if action == "draft":
            latest[which] = one(made, request, DraftLimit(1 + amount % 5))
            assert latest[which] == one(drafter(fake(), 4), request, DraftLimit(1 + amount % 5))
        elif action == "commit":
            draft = latest.pop(which, None)
            right = list(draft.tokens[: amount % 5]) if draft is not None else []
            commit(made, request, [*right, *tokens], draft)
        else:
            latest.pop(which, None)
            kept = max(1, len(request.tokens) - amount)
            request.tokens[kept:] = tokens
            made.observe(request, Outcome(kept, tuple(tokens)))
    for request in requests:
        made.stop(request)
    assert all(model.length(number) == 0 for number in range(3))


# --- room ----------------------------------------------------------------------------------------------


def test_takes_the_lowest_free_sequence_and_gives_it_back() -> None:
    model = fake(sequences=2)
    made = drafter(model)
    first, second, third = view(1), view(2), view(3)
    assert one(made, first) is not None
    assert one(made, second) is not None
    assert one(made, third) is None
    made.stop(first)
    assert model.length(0) == 0
    assert one(made, third) is not None
    assert model.forwards[-1][0].seq == 0


def test_a_full_context_shortens_drafts_and_then_ends_them() -> None:
    made = drafter(fake(context_length=10))
    lengths = []
    for size in (5, 8, 9, 10, 11, 12):
        draft = one(made, view(size, [1] * size))
        made.stop(view(size))
        lengths.append(0 if draft is None else len(draft))
    # Ten cells hold the history and all but the last token of the draft.
    assert lengths == [6, 3, 2, 1, 0, 0]


class FullModel(FakeModel):
    """Its cache is full from the n-th forward on."""

    full_from = 0

    def forward(self, batch: Sequence[Rows]) -> Logits:
        if len(self.forwards) >= self.full_from:
            raise OutOfKVError("full")
        return super().forward(batch)


@pytest.mark.parametrize(("full_from", "length"), [(0, 0), (1, 1), (3, 3)])
def test_a_full_cache_ends_the_draft_and_nothing_else(full_from: int, length: int) -> None:
    model = FullModel(VOCAB, logits=LOGITS)
    model.full_from = full_from
    made = drafter(model)
    draft = one(made, view())
    assert (0 if draft is None else len(draft)) == length
    model.full_from = 10**6
    assert one(made, view()) == one(drafter(fake()), view())


def test_close_closes_the_model() -> None:
    model = fake()
    made = drafter(model)
    made.close()
    made.close()
    assert model.closed


def test_any_token_sampler_will_do() -> None:
    draft = one(DraftModelDrafter(fake(), FakeSampler(), 5, end_tokens=frozenset()), view())
    assert draft is not None
    assert list(draft.tokens) == own_tokens(view(), 5)
