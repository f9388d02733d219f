"""The drafter of heads: right pairs of tokens and features, in any history; bounded memory; trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.heads import ROWS, HeadsDrafter, _Kept, create
from foredraft.drafters.stepwise import TREE
from foredraft.errors import OutOfKVError, SpeculationStringError, UnsupportedModelError
from foredraft.images import ImageSpan, PreparedImage
from foredraft.protocols import RequestView
from foredraft.sampling.coupled import CoupledSampler
from foredraft.testing import (
    FEATURE_SIZE,
    FakeHead,
    FakeModel,
    LogitsFunction,
    drafter_context,
    markov_logits,
)
from foredraft.types import Draft, DraftLimit, Features, HeadRows, Logits, Outcome, Rows, SamplingParams

VOCAB = 24
NOBODY: frozenset[int] = frozenset()
LOGITS = markov_logits(VOCAB, order=1, seed=3, scale=1.5)
FULL = DraftLimit(64)
PROMPT = (1, 2, 3, 4, 5)


class Bench:
    """A target, a head of it and the drafter, without an engine."""

    def __init__(
        self,
        *,
        window: int = 0,
        kept: int = 512,
        trees: bool = False,
        head_trees: bool = False,
        block: int = 0,
        logits: LogitsFunction = LOGITS,
        sequences: int = 4,
        **options: Any,
    ) -> None:
        self.target = FakeModel(VOCAB, logits=LOGITS, features=("layer:1", "next"), max_batch=4096)
        self.head = FakeHead(
            self.target, window=window, trees=head_trees, block=block, sequences=sequences, logits=logits
        )
        self.drafter = HeadsDrafter(
            self.head,
            CoupledSampler(VOCAB, NOBODY),
            end_tokens=options.pop("end_tokens", NOBODY),
            window=kept,
            trees=trees,
            **options,
        )

    def features(self, tokens: Sequence[int]) -> Features:
        self.target.release(0)
        self.target.forward([Rows(0, 0, tokens, 0)])
        return self.target.features()

    def start(self, tokens: Sequence[int] = PROMPT, number: int = 1, **params: Any) -> RequestView:
        request = RequestView(number, list(tokens), SamplingParams(**params), number, len(tokens))
        self.drafter.start(request)
        return request

    def compute(self, request: RequestView, start: int) -> None:
        """The target computes all rows but the last, from `start` on."""
        if request.tokens[start:-1]:
            self.drafter.absorb(request, start, self.features(request.tokens[:-1])[start:])

    def begin(self, tokens: Sequence[int] = PROMPT, number: int = 1, **params: Any) -> RequestView:
        request = self.start(tokens, number, **params)
        self.compute(request, 0)
        return request

    def commit(self, request: RequestView, tokens: Sequence[int], draft: Draft | None = None) -> None:
        kept = len(request.tokens)
        request.tokens += tokens
        self.compute(request, kept - 1)
        self.drafter.observe(request, Outcome(kept, tuple(tokens), draft))

    def edit(self, request: RequestView, kept: int, tokens: Sequence[int]) -> None:
        """Text was removed, and the target computes from there on."""
        request.tokens[kept:] = tokens
        self.compute(request, max(0, min(kept, len(request.tokens) - 1) - 1))
        self.drafter.observe(request, Outcome(kept, tuple(tokens)))

    def draft(self, request: RequestView, limit: DraftLimit = FULL) -> Draft | None:
        (draft,) = self.drafter.draft([(request, limit)])
        assert self.head.length(0) <= max(len(request.tokens), self.head.length(1))
        return draft

    @property
    def read(self) -> list[tuple[int, int]]:
        """(first position, rows) of the forwards with the target's features."""
        return [
            (rows.start, len(rows.tokens))
            for batch in self.head.batches
            for rows in batch
            if rows.features is not None
        ]


def greedy(tokens: Sequence[int], count: int) -> tuple[int, ...]:
    text = list(tokens)
    for _ in range(count):
        text.append(int(LOGITS(text).argmax()))
    return tuple(text[len(tokens) :])


# --- reading -------------------------------------------------------------------------------------------


def test_a_right_head_is_always_right_and_reads_every_row_once() -> None:
    bench = Bench()
    request = bench.begin()
    for _ in range(30):
        draft = bench.draft(request)
        assert draft is not None
        assert draft.tokens == greedy(request.tokens, 8)
        bench.commit(request, greedy(request.tokens, 9), draft)
    # A row for each token but the first, which has none before it, and those after the last draft.
    assert sum(count for _, count in bench.read) == len(request.tokens) - 1 - 9
    assert [len(batch) for batch in bench.head.batches] == [1] * (30 * 8)


def test_it_is_coupled_to_the_target_above_temperature_0() -> None:
    bench = Bench()
    request = bench.begin(temperature=0.8)
    draft = bench.draft(request)
    assert draft is not None
    sampler, text = CoupledSampler(VOCAB, NOBODY), list[int]()
    for _ in range(8):
        token, _, _ = sampler.propose(LOGITS([*PROMPT, *text]), request, text)
        text.append(token)
    assert draft.tokens == tuple(text)


def test_nothing_is_computed_before_the_first_draft() -> None:
    bench = Bench()
    request = bench.begin()
    bench.commit(request, (7, 8, 9))
    assert not bench.head.batches
    bench.draft(request)
    assert bench.read == [(1, 7)]


def test_after_a_pause_only_the_gap_is_read() -> None:
    bench = Bench()
    request = bench.begin()
    bench.draft(request)
    for token in (6, 7, 8):
        bench.commit(request, (token,))
    bench.draft(request)
    assert bench.read == [(1, 4), (5, 3)]


def test_a_second_draft_after_the_same_text_reads_the_last_row_again() -> None:
    bench = Bench()
    request = bench.begin()
    assert bench.draft(request) == bench.draft(request)
    assert bench.read == [(1, 4), (4, 1)]


def test_rows_of_a_draft_are_dropped() -> None:
    bench = Bench()
    request = bench.begin()
    bench.draft(request)
    assert bench.head.length(0) == len(request.tokens)


def test_a_prefix_from_a_cache_has_no_rows() -> None:
    bench = Bench()
    request = bench.start(range(10))
    assert bench.draft(request) is None
    bench.compute(request, 6)
    assert bench.draft(request) is not None
    assert bench.read == [(7, 3)]


def test_a_long_pause_leaves_the_window() -> None:
    bench = Bench(kept=16)
    request = bench.begin(range(20))
    bench.draft(request)
    bench.commit(request, [1, 2])
    bench.draft(request)
    for _ in range(4):
        bench.commit(request, greedy(request.tokens, 6))
    assert bench.draft(request) is not None
    assert bench.read == [(4, 16), (20, 2), (30, 16)]


def test_a_head_of_one_row_reads_the_last_pair_only() -> None:
    bench = Bench(window=1)
    request = bench.begin(range(20))
    for _ in range(3):
        draft = bench.draft(request)
        assert draft is not None
        assert draft.tokens == greedy(request.tokens, 8)
        bench.commit(request, draft.tokens[:4], draft)
    assert bench.read == [(19, 1), (23, 1), (27, 1)]


def test_without_features_of_the_last_rows_nothing_is_drafted() -> None:
    bench = Bench()
    request = bench.start()
    bench.drafter.absorb(request, 0, bench.features(request.tokens[:2]))
    assert bench.draft(request) is None
    assert bench.draft(bench.begin([3], 2)) is None
    assert bench.draft(bench.begin([3, 4], 3)) is not None


def test_removed_text_goes_from_the_head() -> None:
    bench = Bench()
    request = bench.begin()
    bench.draft(request)
    bench.edit(request, 4, [9])  # as long as before
    assert bench.draft(request) is not None
    assert bench.read == [(1, 4), (3, 2)]
    bench.edit(request, 3, [])
    draft = bench.draft(request)
    assert draft is not None
    assert draft.tokens == greedy(PROMPT[:3], 8)


def test_text_read_again_after_a_preemption_is_no_trouble() -> None:
    bench = Bench()
    request = bench.begin(range(12))
    before = bench.draft(request)
    bench.drafter.absorb(request, 3, bench.features(request.tokens[:6])[3:])  # the first chunk
    bench.drafter.absorb(request, 6, bench.features(request.tokens[:11])[6:])
    assert bench.draft(request) == before
    assert bench.head.length(0) == 12


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["draft", "commit", "edit", "again", "silent"]),
        st.integers(0, 2),
        st.integers(0, 9),
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5),
    ),
    max_size=25,
)


@given(
    steps=STEPS,
    window=st.sampled_from([0, 1, 3]),
    kept=st.sampled_from([2, 7, 512]),
    trees=st.booleans(),
    block=st.sampled_from([0, 3]),
)
def test_any_history_is_read_right(
    steps: list[tuple[str, int, int, list[int]]], window: int, kept: int, trees: bool, block: int
) -> None:
    """A FakeHead raises for wrong pairs. The last token alone decides, so drafts are those of a fresh one."""
    options: dict[str, Any] = {"trees": trees, "head_trees": trees, "block": block, "max_tokens": 4}
    bench = Bench(window=window, kept=kept, sequences=3, **options)
    requests = [bench.begin((1, 2, 3), number) for number in range(3)]
    for action, which, amount, tokens in steps:
        request = requests[which]
        if action == "commit":
            bench.commit(request, tokens)
        elif action == "edit":
            bench.edit(request, max(2, len(request.tokens) - amount), tokens)
        elif action == "again":
            bench.compute(request, max(0, len(request.tokens) - 2 - amount))
        elif action == "silent":  # several rounds come as one change
            before = len(request.tokens)
            for token in tokens:
                request.tokens.append(token)
                bench.compute(request, len(request.tokens) - 2)
            bench.drafter.observe(request, Outcome(before, tuple(tokens)))
        drafts = bench.drafter.draft([(it, DraftLimit(1 + amount % 5)) for it in requests])
        for number, (one, draft) in enumerate(zip(requests, drafts, strict=True)):
            fresh = Bench(**options)
            assert draft == fresh.draft(fresh.begin(one.tokens, number), DraftLimit(1 + amount % 5))
            assert bench.head.length(number) <= len(one.tokens)
    for request in requests:
        bench.drafter.stop(request)
    assert all(bench.head.length(number) == 0 for number in range(3))


def test_memory_is_bounded() -> None:
    bench = Bench(kept=32)
    request = bench.begin(range(20))
    for _ in range(60):
        bench.commit(request, greedy(request.tokens, 7))
    [text] = bench.drafter._texts.values()
    assert len(text.kept.tokens) == 32
    assert text.kept._rows is not None
    assert text.kept._rows.nbytes == 32 * 4 * 4
    bench.drafter.stop(request)
    assert not bench.drafter._texts


def test_hidden_states_come_as_they_were() -> None:
    bench = Bench()
    seen: list[Features] = []

    def forward(batch: Sequence[HeadRows]) -> Logits:
        seen.extend(rows.features for rows in batch if rows.features is not None)
        return np.zeros((1, VOCAB), np.float32)

    bench.head.forward = forward  # type: ignore[method-assign]
    request = bench.start((1, 2))
    bench.drafter.absorb(request, 0, np.array([[1e6, -1e6, 3.0, 0.1]], np.float32))
    bench.draft(request, DraftLimit(1))
    assert seen[0].tolist() == np.array([[1e6, -1e6, 3.0, 0.1]], np.float32).tolist()


# --- blocks --------------------------------------------------------------------------------------------


def test_a_block_is_one_forward() -> None:
    bench = Bench(block=7)
    request = bench.begin()
    for _ in range(10):
        draft = bench.draft(request)
        assert draft is not None
        assert draft.tokens == greedy(request.tokens, 7)
        assert bench.head.length(0) == len(request.tokens)
        bench.commit(request, greedy(request.tokens, 5), draft)
    assert [len(batch) for batch in bench.head.batches] == [1] * 10
    assert sum(count for _, count in bench.read) == len(request.tokens) - 1 - 5


def test_as_many_tokens_as_wanted_are_computed() -> None:
    bench = Bench(block=15, max_tokens=6)
    request = bench.begin()
    for most, drafted in ((3, 3), (64, 6), (1, 1)):
        draft = bench.draft(request, DraftLimit(most))
        assert draft is not None
        assert draft.tokens == greedy(PROMPT, drafted)
        assert bench.head.batches[-1][0].logits == drafted


def test_a_block_ends_where_it_is_too_unlikely_or_the_answer_ends() -> None:
    bench = Bench(block=8)
    whole = bench.draft(bench.begin())
    assert whole is not None
    survival = np.cumprod(whole.confidence)
    for length in (1, 3, 5):
        least = DraftLimit(64, float(survival[length - 1]) * 0.999)
        assert bench.draft(bench.begin(number=length), least) == whole.cut(length)
        bench.drafter.stop(bench.begin(number=length))
    ended = Bench(block=8, end_tokens=frozenset({whole.tokens[3]}))
    assert ended.draft(ended.begin()) == whole.cut(whole.tokens.index(whole.tokens[3]) + 1)
    careful = Bench(block=8, min_p=max(whole.confidence) + 1e-6)
    assert careful.draft(careful.begin()) is None


def test_each_token_of_a_block_is_coupled_to_the_target() -> None:
    bench = Bench(block=8)
    request = bench.begin(temperature=0.8)
    draft = bench.draft(request)
    assert draft is not None
    sampler, text, path = CoupledSampler(VOCAB, NOBODY), list(PROMPT), list[int]()
    for _ in range(8):
        row = LOGITS(text)
        path.append(sampler.propose(row, request, path)[0])
        text.append(int(row.argmax()))
    assert draft.tokens == tuple(path)


def test_blocks_of_all_requests_are_one_forward() -> None:
    bench = Bench(block=7)
    requests = [bench.begin([number, 2, 3], number) for number in range(1, 4)]
    drafts = bench.drafter.draft([(request, DraftLimit(7 - request.id)) for request in requests])
    assert [[rows.logits for rows in batch] for batch in bench.head.batches] == [[6, 5, 4]]
    for request, draft in zip(requests, drafts, strict=True):
        assert draft is not None
        assert draft.tokens == greedy(request.tokens, 7 - request.id)


def test_uncertain_tokens_of_a_block_have_siblings() -> None:
    bench = Bench(block=7, trees=True)
    draft = bench.draft(bench.begin())
    assert draft is not None
    assert draft.parents is not None
    assert len(draft.tokens) == 7
    assert draft.tokens[0] == greedy(PROMPT, 1)[0]


# --- several requests, limits, failures ----------------------------------------------------------------


def test_one_forward_for_each_depth_of_all_requests() -> None:
    bench = Bench(max_tokens=4)
    requests = [bench.begin([number, 2, 3], number) for number in range(1, 4)]
    drafts = bench.drafter.draft([(request, FULL) for request in requests])
    assert [len(batch) for batch in bench.head.batches] == [3, 3, 3, 3]
    for request, draft in zip(requests, drafts, strict=True):
        assert draft is not None
        assert draft.tokens == greedy(request.tokens, 4)


def test_a_long_text_is_read_beside_the_drafts_of_others() -> None:
    bench = Bench(max_tokens=3)
    long, short = bench.begin([7, 8, 9] * 60, 1), bench.begin([1, 2], 2)
    assert all(bench.drafter.draft([(long, FULL), (short, FULL)]))
    rows = [sum(len(it.tokens) for it in batch) for batch in bench.head.batches]
    assert max(rows) == ROWS
    assert len(rows) == 3 + 2
    assert [len(batch) for batch in bench.head.batches] == [2, 2, 2, 1, 1]


def test_more_requests_than_sequences() -> None:
    bench = Bench(sequences=1)
    first, second = bench.begin(number=1), bench.begin(number=2)
    drafts = bench.drafter.draft([(first, FULL), (second, FULL)])
    assert [draft is not None for draft in drafts] == [True, False]
    bench.drafter.stop(first)
    assert bench.draft(second) is not None


def test_a_request_that_waits_gives_its_sequence_to_one_that_runs() -> None:
    bench = Bench(sequences=2)
    waiting, running, third = (bench.begin((number, *PROMPT), number=number) for number in (1, 2, 3))
    for request in (running, waiting, running, third, running, waiting, third, waiting):
        draft = bench.draft(request)
        assert draft is not None
        assert draft.tokens == greedy(request.tokens, 8)
    bench.commit(waiting, greedy(waiting.tokens, 3))
    bench.commit(running, greedy(running.tokens, 3))
    for request in (waiting, running, third):
        draft = bench.draft(request)
        assert draft is not None
        assert draft.tokens == greedy(request.tokens, 8)
        bench.drafter.stop(request)


@pytest.mark.parametrize("columns", [None, np.arange(2 * FEATURE_SIZE)])
def test_of_a_long_prompt_only_what_can_stay_is_copied(columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(kept=3, columns=columns)
    copied: list[int] = []
    add = _Kept.add

    def adding(kept: _Kept, start: int, tokens: Sequence[int], rows: Features) -> None:
        copied.append(len(rows))
        add(kept, start, tokens, rows)

    monkeypatch.setattr(_Kept, "add", adding)
    request = bench.begin([*PROMPT] * 20)
    bench.commit(request, greedy(request.tokens, 1))
    assert copied == [3, 1]
    draft = bench.draft(request)
    assert draft is not None
    assert draft.tokens == greedy(request.tokens, 8)


def test_limits_end_a_draft() -> None:
    bench = Bench(max_tokens=6)
    whole = bench.draft(bench.begin())
    assert whole is not None
    survival = np.cumprod(whole.confidence)
    for length in (1, 3, 5):
        assert bench.draft(bench.begin(number=length), DraftLimit(length)) == whole.cut(length)
        least = DraftLimit(64, float(survival[length - 1]) * 0.999)
        assert bench.draft(bench.begin(number=10 + length), least) == whole.cut(length)
        bench.drafter.stop(bench.begin(number=length))
        bench.drafter.stop(bench.begin(number=10 + length))
    end = whole.tokens[3]
    ended = Bench(end_tokens=frozenset({end}))
    assert ended.draft(ended.begin()) == whole.cut(whole.tokens.index(end) + 1)
    careful = Bench(min_p=max(whole.confidence) + 1e-6)
    assert careful.draft(careful.begin()) is None


def test_a_full_head_ends_the_draft_and_nothing_else() -> None:
    bench, forward = Bench(), FakeHead.forward

    def full(batch: Sequence[HeadRows]) -> Logits:
        if len(bench.head.batches) == 3:
            raise OutOfKVError("full")
        return forward(bench.head, batch)

    bench.head.forward = full  # type: ignore[method-assign]
    request = bench.begin()
    draft = bench.draft(request)
    assert draft is not None
    assert draft.tokens == greedy(PROMPT, 3)
    bench.head.forward = lambda batch: forward(bench.head, batch)  # type: ignore[method-assign]
    again = bench.draft(request)
    assert again is not None
    assert again.tokens == greedy(PROMPT, 8)


def test_the_end_of_the_heads_context_ends_drafts() -> None:
    bench, lengths = Bench(), []
    bench.head.info = replace(bench.head.info, context_length=10)
    for size in (5, 8, 9, 10, 11, 12):
        request = bench.begin([1] * size, size)
        draft = bench.draft(request)
        bench.drafter.stop(request)
        lengths.append(0 if draft is None else len(draft))
    assert lengths == [6, 3, 2, 1, 0, 0]


# --- a reduced vocabulary ------------------------------------------------------------------------------

KNOWN = range(0, VOCAB, 3)


def reduced(prefix: Sequence[int]) -> Logits:
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[KNOWN] = LOGITS(prefix)[KNOWN]
    return logits


@pytest.mark.parametrize("verify", ["match", "rejection", "block"])
@pytest.mark.parametrize("trees", [False, True])
def test_a_reduced_vocabulary_is_all_that_is_proposed(verify: Any, trees: bool) -> None:
    for number in range(20):
        bench = Bench(logits=reduced, trees=trees, head_trees=trees)
        draft = bench.draft(bench.begin(number=number, temperature=0.9, verify=verify))
        assert draft is not None
        assert set(draft.tokens) <= set(KNOWN)
        for probs in draft.probs or ():
            assert probs.sum() == pytest.approx(1.0)
            assert not probs[[token for token in range(VOCAB) if token not in KNOWN]].any()
        assert (draft.probs is not None) == (verify != "match")


@pytest.mark.parametrize("verify", ["match", "rejection"])
def test_where_none_of_its_tokens_may_come_a_draft_ends(verify: Any) -> None:
    bench = Bench(logits=reduced, trees=True, head_trees=True)
    banned = dict.fromkeys(KNOWN, -np.inf)
    request = bench.begin(temperature=0.9, verify=verify, logit_bias=banned)
    assert bench.draft(request) is None
    few = bench.begin(number=2, temperature=0.9, verify=verify, logit_bias=dict.fromkeys(KNOWN[1:], -np.inf))
    draft = bench.draft(few)
    assert draft is not None
    assert set(draft.tokens) == {0}


# --- trees ---------------------------------------------------------------------------------------------


def tree_of(number: int, **params: Any) -> tuple[Bench, Draft]:
    bench = Bench(trees=True, head_trees=True, max_tokens=12)
    draft = bench.draft(bench.begin([3, number % VOCAB, 7 * number % VOCAB], number, **params))
    assert draft is not None
    return bench, draft


def reached(draft: Draft) -> list[float]:
    found: list[float] = []
    parents = draft.parents or range(-1, len(draft) - 1)
    for parent, chance in zip(parents, draft.confidence, strict=True):
        found.append(chance * (1.0 if parent < 0 else found[parent]))
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_likeliest_branches_are_continued_together(temperature: float) -> None:
    deep = 0
    for number in range(1, 25):
        bench, draft = tree_of(number, temperature=temperature)
        own = [batch[0] for batch in bench.head.batches if batch[0].features is None]
        assert all(1 <= len(rows.tokens) <= TREE.extended for rows in own)
        assert [rows.start for rows in own] == list(range(3, 3 + len(own)))
        assert all(rows.logits == len(rows.tokens) for rows in own)
        chances = reached(draft)
        assert chances == sorted(chances, reverse=True)
        parents = draft.parents or tuple(range(-1, len(draft) - 1))
        pairs = list(zip(parents, draft.tokens, strict=True))
        assert len(set(pairs)) == len(pairs)
        first = [i for i, parent in enumerate(parents) if parent < 0]
        others = set(first[1:])
        deep += any(parent in others for parent in parents)
    assert deep > 5, "branches beside the first choices are continued, too"


def test_the_first_choices_of_a_tree_are_its_chain() -> None:
    for number in range(1, 25):
        _, draft = tree_of(number, temperature=0.8)
        chain = Bench(max_tokens=12)
        request = chain.begin([3, number % VOCAB, 7 * number % VOCAB], number, temperature=0.8)
        line = chain.draft(request)
        assert line is not None
        assert draft.tokens[0] == line.tokens[0]


def test_a_tree_keeps_to_its_limit() -> None:
    for most in (1, 2, 5):
        bench = Bench(trees=True, head_trees=True)
        draft = bench.draft(bench.begin(), DraftLimit(most))
        assert draft is not None
        assert len(draft) <= most
    bench = Bench(trees=True, head_trees=True)
    bench.draft(bench.begin(), DraftLimit(8, 0.9))
    assert len(bench.head.batches) == 1, "nothing unlikely is continued"


def test_sampled_drafts_are_chains() -> None:
    _, draft = tree_of(5, temperature=0.9, verify="block")
    assert draft.parents is None
    assert draft.probs is not None
    assert len(draft.probs) == len(draft)


def test_a_head_of_chains_has_second_choices() -> None:
    shapes = set()
    for number in range(1, 40):
        bench = Bench(trees=True)
        draft = bench.draft(bench.begin([number % VOCAB, number % 7], number, temperature=0.8))
        assert draft is not None
        shapes.add(draft.parents is None)
        assert all(len(rows.tokens) == 1 for batch in bench.head.batches[1:] for rows in batch)
    assert shapes == {False, True}


# --- options -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max": "0"}, "max=0 is not between 1 and 63"),
        ({"max": "64"}, "max=64 is not between 1 and 63"),
        ({"window": "0"}, "window=0 must be at least 1"),
        ({"min-p": "1.5"}, "between 0 and 1"),
        ({"min-p": "nan"}, "between 0 and 1"),
        ({"ctx": "5"}, "no option"),
    ],
)
def test_bad_options_are_refused_before_anything_is_loaded(options: dict[str, str], message: str) -> None:
    with pytest.raises(SpeculationStringError, match=message):
        create(drafter_context(FakeModel(VOCAB)), options)


def test_a_target_without_features_has_no_head() -> None:
    with pytest.raises(UnsupportedModelError):
        create(drafter_context(FakeModel(VOCAB)), {})


def test_a_head_gets_the_columns_that_it_needs() -> None:
    target = FakeModel(VOCAB, logits=LOGITS, features=("layer:1", "layer:5", "next"))
    context = drafter_context(target)
    head = FakeHead(FakeModel(VOCAB, logits=LOGITS, features=("next", "layer:1")))
    seen: list[Features] = []

    def forward(batch: Sequence[HeadRows]) -> Logits:
        seen.extend(rows.features for rows in batch if rows.features is not None)
        return np.zeros((1, VOCAB), np.float32)

    head.forward = forward  # type: ignore[method-assign]
    made = create(replace(context, load_head=lambda path, *, sequences: head), {"max": "1"})
    request = RequestView(1, [1, 2])
    made.start(request)
    made.absorb(request, 0, np.arange(6, dtype=np.float32)[None])  # type: ignore[attr-defined]
    made.draft([(request, FULL)])
    assert seen[0].tolist() == [[4, 5, 0, 1]]
    made.close()
    made.close()
    assert head.closed


@pytest.mark.parametrize("block", [0, 4])
@pytest.mark.parametrize("after", [0, 3])
def test_rows_of_images_are_not_read(block: int, after: int) -> None:
    """The first row is the one of the first token behind the last image, also where that is generated."""
    bench = Bench(block=block)
    prompt = [1, 2, 0, 0, 0, 4, 0, 0, *range(5, 5 + after)]
    images = PreparedImage("a", (0, 0, 0), ((0, 3),)), PreparedImage("b", (0, 0), ((0, 2),))
    spans = ImageSpan(2, 3, images[0]), ImageSpan(6, 2, images[1])
    request = RequestView(1, [*prompt, 9], SamplingParams(), 1, len(prompt), images=spans)
    bench.drafter.start(request)
    bench.compute(request, 0)
    assert bench.draft(request) is not None
    assert bench.read == [(8, 1 + after)]
    bench.commit(request, [3])
    assert bench.draft(request) is not None
    assert bench.read[1:] in ([(9 + after, 1)], [(8, 2 + after)])
