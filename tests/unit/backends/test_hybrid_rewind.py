"""`backends.rewind`: a model with a recurrent state, taken back to the tokens that were accepted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from foredraft.backends.rewind import BEFORE_THE_END, MARKED_FROM, RewindingModel
from foredraft.engine.engine import Engine
from foredraft.engine.round import MAX_RECOMPUTED
from foredraft.errors import BackendError, OutOfKVError
from foredraft.testing import ScriptedDrafter, assert_lossless, markov_logits
from foredraft.types import Logits, Rollback, Rows, SamplingParams
from matrix import matrix
from model_cases import fresh, prefill, text_tokens
from recurrent_double import FakeRecurrentModel

TEXT = text_tokens(24)
DRAFT = text_tokens(6, seed=1)
OTHER = text_tokens(9, seed=2)
SPARE = 3


def made(bound: int = 0, **settings: int) -> tuple[RewindingModel, FakeRecurrentModel]:
    inner = FakeRecurrentModel(bound=bound, **settings)
    return RewindingModel(inner), inner


def verified(bound: int = 0, **settings: int) -> tuple[RewindingModel, FakeRecurrentModel]:
    """A sequence that holds TEXT, after which the draft was just verified; all its rows returned logits."""
    model, inner = made(bound, **settings)
    prefill(model, 0, TEXT)
    model.forward([Rows(0, len(TEXT), DRAFT, len(DRAFT))])
    return model, inner


def goes_on(model: RewindingModel, seq: int, held: Sequence[int]) -> None:
    """The sequence is what it would be if it had never held anything but `held`."""
    assert model.length(seq) == len(held)
    assert np.array_equal(prefill(model, seq, OTHER), fresh(model, SPARE, [*held, *OTHER]))


def test_it_says_what_it_can_do() -> None:
    model, _ = made(bound=3)
    assert (model.capabilities.rollback, model.capabilities.rollback_bound) == (Rollback.SNAPSHOT, 3)


@pytest.mark.parametrize("bound", [0, 2, 10])
@pytest.mark.parametrize("kept", range(1, len(DRAFT) + 1))
def test_a_rejection_leaves_what_was_accepted(kept: int, bound: int) -> None:
    model, inner = verified(bound)
    model.truncate(0, len(TEXT) + kept)
    rejected = len(DRAFT) - kept
    assert model.to_recompute(0) == (kept if rejected > bound else 0)
    assert inner.rewinds == (1 if rejected > bound else 0)
    goes_on(model, 0, [*TEXT, *DRAFT[:kept]])
    assert model.to_recompute(0) == 0


def test_all_of_the_draft_can_be_taken_back() -> None:
    model, _ = verified()
    model.truncate(0, len(TEXT))
    assert model.to_recompute(0) == 0
    goes_on(model, 0, TEXT)


def test_a_rejection_needs_no_forward_of_its_own() -> None:
    model, inner = verified()
    model.truncate(0, len(TEXT) + 2)
    before = len(inner.forwards)
    model.forward([Rows(0, len(TEXT) + 2, OTHER[:1], 1)])
    assert inner.forwards[before:] == [(Rows(0, len(TEXT), [*DRAFT[:2], OTHER[0]], 1),)]


def test_only_a_forward_that_may_be_taken_back_is_prepared_for() -> None:
    model, inner = made(bound=3)
    prefill(model, 0, TEXT)
    prefill(model, 0, OTHER[:1])
    model.forward([Rows(0, model.length(0), DRAFT[:4], 4)])  # a draft of three
    assert inner.copies == 0
    model.forward([Rows(0, model.length(0), DRAFT[:5], 5)])
    assert inner.copies == 1


def test_what_is_owed_can_be_rejected_again() -> None:
    model, inner = verified()
    model.truncate(0, len(TEXT) + 2)
    held = [*TEXT, *DRAFT[:2]]
    for kept in (1, 3):
        model.forward([Rows(0, len(held), OTHER[:4], 4)])
        held += OTHER[:kept]
        model.truncate(0, len(held))
    assert model.to_recompute(0) == 2 + 1 + 3
    assert inner.copies == 1, "the state is the one that was copied first"
    model.truncate(0, len(held) - 2)
    assert model.to_recompute(0) == 2 + 1 + 1
    goes_on(model, 0, held[:-2])


def test_what_was_accepted_is_kept_when_the_next_draft_is_right() -> None:
    model, _ = verified()
    model.truncate(0, len(TEXT) + 2)
    model.forward([Rows(0, len(TEXT) + 2, OTHER[:4], 4)])
    assert model.to_recompute(0) == 0
    goes_on(model, 0, [*TEXT, *DRAFT[:2], *OTHER[:4]])


def test_sequences_are_taken_back_each_for_itself() -> None:
    model, _ = made(bound=2)
    prefill(model, 0, TEXT)
    prefill(model, 1, OTHER)
    model.forward([Rows(0, len(TEXT), DRAFT, 6), Rows(1, len(OTHER), DRAFT[:4], 4)])
    model.truncate(0, len(TEXT) + 1)
    model.truncate(1, len(OTHER) + 2)
    assert (model.to_recompute(0), model.to_recompute(1)) == (1, 0)
    batch = [Rows(1, len(OTHER) + 2, TEXT[:3], 1), Rows(0, len(TEXT) + 1, TEXT[:2], 2)]
    logits = model.forward(batch).copy()
    assert np.array_equal(logits[0], fresh(model, SPARE, [*OTHER, *DRAFT[:2], *TEXT[:3]]))
    assert np.array_equal(logits[1], fresh(model, SPARE, [*TEXT, DRAFT[0], TEXT[0]]))
    assert np.array_equal(logits[2], fresh(model, SPARE, [*TEXT, DRAFT[0], *TEXT[:2]]))


# --- what it refuses -----------------------------------------------------------------------------------


def plainly(model: RewindingModel) -> None:
    prefill(model, 0, OTHER[:1])


def restored(model: RewindingModel) -> None:
    model.restore(0, model.snapshot(0))


@pytest.mark.parametrize("since", [plainly, restored])
def test_tokens_before_the_last_draft_stay(since: Callable[[RewindingModel], None]) -> None:
    model, _ = verified()
    since(model)
    held = [*TEXT, *DRAFT, *(OTHER[:1] if since is plainly else [])]
    for length in (1, len(TEXT) - 1, len(TEXT) + 3):
        with pytest.raises(BackendError):
            model.truncate(0, length)
    goes_on(model, 0, held)


def test_a_sequence_is_not_cut_to_what_the_draft_followed_less_one() -> None:
    model, _ = verified(bound=1)
    with pytest.raises(BackendError):
        model.truncate(0, len(TEXT) - 1)
    with pytest.raises(BackendError):
        model.truncate(0, len(TEXT) + len(DRAFT) + 1)
    goes_on(model, 0, [*TEXT, *DRAFT])


def test_rows_must_start_where_the_sequence_ends_also_while_some_are_owed() -> None:
    model, _ = verified()
    model.truncate(0, len(TEXT) + 2)
    for start in (len(TEXT), len(TEXT) + 1, len(TEXT) + 3):
        with pytest.raises(BackendError):
            model.forward([Rows(0, start, OTHER, 1)])
    goes_on(model, 0, [*TEXT, *DRAFT[:2]])


def test_a_model_may_be_emptied_at_any_time() -> None:
    model, _ = verified()
    model.truncate(0, len(TEXT) + 2)
    model.truncate(0, 0)
    assert (model.length(0), model.to_recompute(0)) == (0, 0)
    goes_on(model, 0, [])


def test_a_sequence_that_began_with_a_draft_begins_again() -> None:
    model, inner = made()
    model.forward([Rows(0, 0, DRAFT, len(DRAFT))])
    model.truncate(0, 2)
    assert inner.length(0) == 0
    goes_on(model, 0, DRAFT[:2])


# --- room ----------------------------------------------------------------------------------------------


def test_a_full_cache_changes_nothing() -> None:
    model, _ = verified(context_length=len(TEXT) + len(DRAFT))
    model.truncate(0, len(TEXT) + 2)
    with pytest.raises(OutOfKVError):
        model.forward([Rows(0, len(TEXT) + 2, OTHER[:5], 5)])
    assert (model.length(0), model.to_recompute(0)) == (len(TEXT) + 2, 2)
    row = prefill(model, 0, OTHER[:4])
    assert np.array_equal(row, fresh(model, SPARE, [*TEXT, *DRAFT[:2], *OTHER[:4]]))


@pytest.mark.parametrize("tight", [{"max_rows": 8}, {"max_batch": 30}])
def test_what_is_owed_is_computed_before_where_there_is_no_room(tight: dict[str, int]) -> None:
    model, inner = verified(**tight)
    model.truncate(0, len(TEXT) + 4)
    held, many = [*TEXT, *DRAFT[:4]], text_tokens(28, seed=5)
    rows = many[:6] if "max_rows" in tight else many
    before = len(inner.forwards)
    last = model.forward([Rows(0, len(held), rows, 6)])[-1].copy()
    assert [sum(len(part.tokens) for part in batch) for batch in inner.forwards[before:]] == [4, len(rows)]
    assert np.array_equal(last, fresh(made()[0], SPARE, [*held, *rows]))


class Failing(FakeRecurrentModel):
    """Fails after it has computed a part."""

    fails = False

    def forward(self, batch: Sequence[Rows]) -> Logits:
        logits = super().forward(batch)
        if self.fails:
            raise BackendError("halfway")
        return logits


def test_after_a_forward_that_failed_halfway_nothing_is_owed() -> None:
    inner = Failing()
    model = RewindingModel(inner)
    prefill(model, 0, TEXT)
    model.forward([Rows(0, len(TEXT), DRAFT, len(DRAFT))])
    model.truncate(0, len(TEXT) + 2)
    inner.fails = True
    with pytest.raises(BackendError):
        model.forward([Rows(0, len(TEXT) + 2, OTHER, 1)])
    assert (model.length(0), model.to_recompute(0)) == (inner.length(0), 0)


# --- snapshots and copies ------------------------------------------------------------------------------


def test_a_snapshot_has_what_was_owed() -> None:
    model, _ = verified()
    model.truncate(0, len(TEXT) + 3)
    snapshot = model.snapshot(0)
    assert model.to_recompute(0) == 0
    model.truncate(0, len(TEXT) + 1)  # as far as without the snapshot
    goes_on(model, 0, [*TEXT, DRAFT[0]])
    model.restore(1, snapshot)
    goes_on(model, 1, [*TEXT, *DRAFT[:3]])


def test_a_whole_sequence_can_be_copied() -> None:
    model, _ = verified()
    model.truncate(0, len(TEXT) + 3)
    with pytest.raises(BackendError):
        model.fork(0, 1, 5)
    model.fork(0, 1, len(TEXT) + 3)
    goes_on(model, 1, [*TEXT, *DRAFT[:3]])
    goes_on(model, 0, [*TEXT, *DRAFT[:3]])


# --- marks in prompts ----------------------------------------------------------------------------------

PROMPT = text_tokens(MARKED_FROM + 44, seed=9)
MARKED = len(PROMPT) - BEFORE_THE_END


def sizes(model: FakeRecurrentModel) -> list[int]:
    return [sum(len(rows.tokens) for rows in batch) for batch in model.forwards]


def test_a_long_prompt_is_marked_before_its_end() -> None:
    model, inner = made()
    row = prefill(model, 0, PROMPT)
    assert sizes(inner) == [MARKED, BEFORE_THE_END]
    assert np.array_equal(row, fresh(model, SPARE, PROMPT))
    prefill(model, 0, OTHER)
    held = len(PROMPT) + len(OTHER)
    reached = [model.reachable(0, length) for length in (0, MARKED - 1, MARKED, held - 1, held, held + 5)]
    assert reached == [0, 0, MARKED, MARKED, held, held]
    for _ in range(2):  # a mark stays
        model.truncate(0, MARKED)
        goes_on(model, 0, PROMPT[:MARKED])
    model.release(0)
    assert model.reachable(0, MARKED) == 0


def test_a_prompt_in_chunks_is_marked_before_the_last() -> None:
    model, inner = made()
    model.forward([Rows(0, 0, PROMPT[:270], 0)])
    prefill(model, 0, PROMPT[270:])
    assert sizes(inner) == [270, 30]
    assert model.reachable(0, 299) == 270
    model.truncate(0, 270)
    goes_on(model, 0, PROMPT[:270])


def test_nothing_else_is_marked() -> None:
    model, inner = made()
    prefill(model, 0, PROMPT[: MARKED_FROM - 1])
    prefill(model, 0, OTHER)
    prefill(model, 0, OTHER[:1])
    assert inner.copies == 0
    assert model.reachable(0, model.length(0) - 1) == 0


def test_a_mark_is_forgotten_with_the_tokens_before_it() -> None:
    model, _ = made()
    model.forward([Rows(0, 0, DRAFT, len(DRAFT))])
    prefill(model, 0, PROMPT)
    assert model.reachable(0, len(PROMPT)) == len(DRAFT) + MARKED
    model.restore(0, model.snapshot(0))
    assert model.reachable(0, len(PROMPT)) == 0


def test_a_sequence_can_be_copied_up_to_its_mark() -> None:
    model, _ = made()
    prefill(model, 0, PROMPT)
    prefill(model, 0, OTHER)
    model.fork(0, 1, MARKED)
    goes_on(model, 1, PROMPT[:MARKED])
    goes_on(model, 0, [*PROMPT, *OTHER])


def test_a_prompt_that_finds_no_room_leaves_nothing_behind() -> None:
    model, inner = made(kv_cells=len(TEXT) + len(DRAFT) + MARKED + 2)
    prefill(model, 0, TEXT)
    model.forward([Rows(0, len(TEXT), DRAFT, len(DRAFT))])
    model.truncate(0, len(TEXT) + 2)
    with pytest.raises(OutOfKVError):
        model.forward([Rows(1, 0, OTHER[:3], 1), Rows(0, len(TEXT) + 2, PROMPT, 1)])
    assert (model.length(0), model.length(1)) == (len(TEXT) + 2, 0)
    assert MARKED + 2 in sizes(inner), "the room was for a part only"
    assert np.array_equal(prefill(model, 0, OTHER), fresh(made()[0], 0, [*TEXT, *DRAFT[:2], *OTHER]))


# --- the engine ----------------------------------------------------------------------------------------

VOCAB = 40
PROMPTS = [[1, 2, 3], [4, 5], [7] * 9, [3, 1, 2], [9]]


def guesses(seed: int, right: float) -> Callable[[Sequence[int]], list[int]]:
    """Drafts of 0 to 9 tokens, each of which is the likeliest with the chance `right`."""
    rng, logits = random.Random(seed), markov_logits(VOCAB)

    def script(tokens: Sequence[int]) -> list[int]:
        text = list(tokens)
        for _ in range(rng.randint(0, 9)):
            text.append(int(logits(text).argmax()) if rng.random() < right else rng.randrange(VOCAB))
        return text[len(tokens) :]

    return script


@matrix(bound=[0, 2, 5, 60], temperature=[0.0, 0.9], concurrent=[False, True])
def test_speculation_changes_nothing(bound: int, temperature: float, concurrent: bool) -> None:
    inner: list[FakeRecurrentModel] = []

    def model() -> RewindingModel:
        inner.append(FakeRecurrentModel(VOCAB, bound=bound))
        return RewindingModel(inner[-1])

    params = SamplingParams(temperature=temperature, seed=3, max_tokens=80, ignore_eos=True)
    origins = assert_lossless(
        model, lambda _: [ScriptedDrafter(guesses(1, 0.85))], PROMPTS, params, concurrent=concurrent
    )
    assert origins["scripted"] > 60
    assert bool(inner[-1].rewinds) == (bound < 10), "both ways back were taken"


def test_nothing_is_drafted_while_much_is_owed() -> None:
    inner = FakeRecurrentModel(VOCAB, logits=markov_logits(VOCAB))
    recomputed: list[tuple[int, bool]] = []

    class Watched(RewindingModel):
        def forward(self, batch: Sequence[Rows]) -> Logits:
            recomputed.extend((self.to_recompute(rows.seq), rows.logits > 1) for rows in batch)
            return super().forward(batch)

    engine = Engine(Watched(inner), drafters=[ScriptedDrafter(guesses(2, 0.8))])
    engine.generate([1, 2, 3], params=SamplingParams(max_tokens=400, ignore_eos=True))
    engine.close()
    drafted = [count for count, draft in recomputed if draft]
    plain = [count for count, draft in recomputed if not draft]
    assert max(drafted) <= MAX_RECOMPUTED < max(plain)
    assert max(plain) <= MAX_RECOMPUTED + 9, "a plain round computes them all"


def test_the_next_turn_goes_on_from_what_is_cached() -> None:
    engine = Engine(RewindingModel(FakeRecurrentModel(VOCAB)), drafters=[ScriptedDrafter(guesses(3, 0.7))])
    plain = Engine(RewindingModel(FakeRecurrentModel(VOCAB)), drafters=())
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    prompt = [1, 2, 3]
    for _ in range(4):
        answer, expected = (one.generate(list(prompt), params=params) for one in (engine, plain))
        assert answer.tokens == expected.tokens
        assert answer.usage.cached_tokens == (0 if len(prompt) == 3 else len(prompt) - 3)
        prompt = [*prompt, *answer.tokens, 5, 6]
    other = [1, 2, 4, 4]
    assert engine.generate(other, params=params).tokens == plain.generate(other, params=params).tokens
    engine.close()
    plain.close()


def test_a_turn_without_its_reasoning_goes_on_from_the_prompt_before_it() -> None:
    engine = Engine(RewindingModel(FakeRecurrentModel(VOCAB)), drafters=[ScriptedDrafter(guesses(3, 0.7))])
    plain = Engine(RewindingModel(FakeRecurrentModel(VOCAB)), drafters=())
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    prompt, marked = [token % VOCAB for token in PROMPT], 0
    for turn in range(3):
        answer, expected = (one.generate(list(prompt), params=params) for one in (engine, plain))
        assert answer.tokens == expected.tokens
        assert answer.usage.cached_tokens == marked
        marked = len(prompt) - BEFORE_THE_END
        # The template opens a block for reasoning with the last two tokens, and leaves it out later.
        prompt = [*prompt[:-2], *answer.tokens[20:], *PROMPT[turn:]]
        prompt = [token % VOCAB for token in prompt]
    engine.close()
    plain.close()
