"""A draft model that says what the target says, in other tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.translation.drafter import TranslatingDrafter
from foredraft.drafters.translation.twin import Languages
from foredraft.drafters.translation.vocabulary import VocabularyPair
from foredraft.protocols import RequestView
from foredraft.sampling.coupled import CoupledSampler
from foredraft.sampling.sampler import RequestSampler
from foredraft.testing import FakeModel
from foredraft.types import Draft, DraftLimit, Outcome, SamplingParams
from two_tokenizers import ALL, BYTES, COARSE, FINE, TEXT, WORDS, WordTokenizer, speaker, text_of

PAIRS = [(a, b) for a, b in product(ALL, ALL) if a != b]
by_pair = pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=[f"{a} {b}" for a, b in PAIRS])
FULL = DraftLimit(64)


def drafter(
    target: WordTokenizer, model: FakeModel, way: str = "slem", *, most: int = 6, least: int = 0
) -> TranslatingDrafter:
    return TranslatingDrafter(
        lambda sampler, steps: DraftModelDrafter(model, sampler, steps),
        Languages.of(target, model.tokenizer),
        CoupledSampler(target.vocab_size, frozenset()),
        vocab_size=target.vocab_size,
        way=way,
        max_tokens=most,
        min_tokens=least,
    )


def view(tokens: Sequence[int], number: int = 1, params: SamplingParams | None = None) -> RequestView:
    return RequestView(
        number, list(tokens), params or SamplingParams(), seed=number, prompt_length=len(tokens)
    )


def one(made: TranslatingDrafter, request: RequestView, limit: DraftLimit = FULL) -> Draft | None:
    (draft,) = made.draft([(request, limit)])
    if draft is not None:
        assert 0 < len(draft) <= limit.max_tokens
        assert len(draft.confidence) == len(draft)
        assert draft.source == made.name == "draft-model"
    return draft


def change(made: TranslatingDrafter, request: RequestView, kept: int, tokens: Sequence[int]) -> None:
    request.tokens[kept:] = tokens
    made.observe(request, Outcome(kept, tuple(tokens)))


# --- acceptance ----------------------------------------------------------------------------------------


def replay(
    made: TranslatingDrafter, target: WordTokenizer, prompt: int, params: SamplingParams | None = None
) -> list[tuple[Draft | None, int]]:
    """Rounds in which the target says TEXT: what was drafted, and how much of it was right.

    The drafted text is always right, and so is every token but one that the rest of the text makes longer.
    """
    truth = target.encode(TEXT * 3)
    end = 2 * len(truth) // 3
    request = view(truth[:prompt], params=params)
    made.start(request)
    drafts = []
    while len(request.tokens) < end:
        position = len(request.tokens)
        draft, right = one(made, request, DraftLimit(5)), 0
        if draft is not None:
            rest = truth[position:]
            right = next((i for i, token in enumerate(draft.tokens) if token != rest[i]), len(draft))
            drafted = text_of(target, draft.tokens)
            assert text_of(target, rest).startswith(drafted)
            assert right == len(draft) or len(text_of(target, rest[: right + 1])) > len(drafted)
        drafts.append((draft, right))
        change(made, request, position, truth[position : position + right + 1])
    made.stop(request)
    return drafts


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@by_pair
def test_text_that_is_the_target_s_is_accepted(ours: str, theirs: str, temperature: float) -> None:
    made = drafter(ALL[ours], speaker(ALL[theirs]))
    drafts = replay(made, ALL[ours], 20, SamplingParams(temperature=temperature))
    drafted = sum(len(draft) for draft, _ in drafts if draft is not None)
    right = sum(right for _, right in drafts)
    # Nothing is drafted where the draft ends within a character.
    assert sum(draft is None for draft, _ in drafts) <= 0.1 * len(drafts)
    if ours == "bytes":  # whose tokens never get longer
        assert right == drafted
    assert right >= 0.75 * drafted
    assert right / len(drafts) >= 2.5


@pytest.mark.parametrize("way", ["tli", "auto"])
def test_shared_tokens_are_accepted_whole(way: str) -> None:
    """The draft model knows every token that the target writes, under another number."""
    words = [COARSE.token_bytes(token).decode() for token in range(256, COARSE.vocab_size - 2)]
    made = drafter(COARSE, speaker(WordTokenizer(words, reverse=True)), way)
    drafts = replay(made, COARSE, 10)
    whole = [len(draft) for draft, right in drafts if draft is not None and right == len(draft)]
    drafted = [draft for draft, _ in drafts if draft is not None]
    assert len(whole) == len(drafted)
    assert whole.count(5) >= 0.8 * len(whole)
    if way == "auto":
        assert len(drafted) == len(drafts)
    else:  # in the middle of a character that the draft model has not read it has nothing to say
        assert len(drafts) / 2 < len(drafted) < len(drafts)


@pytest.mark.parametrize("way", ["slem", "tli"])
def test_at_a_temperature_the_target_s_own_noise_is_used(way: str) -> None:
    """Two models that know no more than that ten words may follow agree on which one does."""
    words = [f" w{number}" for number in range(10)]
    target, draft = WordTokenizer(words), WordTokenizer(words, reverse=True)
    likely = [target.encode(word)[0] for word in words]

    def row(prefix: Sequence[int], size: int, tokens: Sequence[int]) -> np.ndarray:
        logits = np.full(size, -20.0, np.float32)
        logits[tokens] = 0.0
        return logits

    model = FakeModel(
        draft.vocab_size,
        logits=lambda prefix: row(prefix, draft.vocab_size, [draft.encode(word)[0] for word in words]),
    )
    model.tokenizer = draft  # type: ignore[assignment]
    made = drafter(target, model, way)
    params = SamplingParams(temperature=1.0)
    texts = set()
    for number in range(5):
        request = view(target.encode(" w1 w2 w3"), number, params)
        found = one(made, request, DraftLimit(6))
        assert found is not None
        sampler = RequestSampler(
            params, seed=number, vocab_size=target.vocab_size, end_tokens=frozenset(), prompt=request.tokens
        )
        expected: list[int] = []
        for _ in found.tokens:
            expected.append(sampler.choose(row((), target.vocab_size, likely), expected))
        assert list(found.tokens) == expected
        assert found.confidence == pytest.approx([0.1] * 6, rel=1e-3)
        texts.add(found.tokens)
        made.stop(request)
    assert len(texts) == 5


def test_a_long_token_of_the_draft_model_counts_for_the_one_it_begins_with() -> None:
    """Each is less likely than " x" alone, but together the words that begin with " w" are likelier."""
    target = WordTokenizer([" w", " x"])
    draft = WordTokenizer([" wa", " wb", " wc", " x"])

    def logits(prefix: Sequence[int]) -> np.ndarray:
        row = np.full(draft.vocab_size, -30.0, np.float32)
        for text, share in ((" wa", 0.25), (" wb", 0.2), (" wc", 0.2), (" x", 0.35)):
            row[draft.encode(text)[0]] = np.log(share)
        return row

    model = FakeModel(draft.vocab_size, logits=logits)
    model.tokenizer = draft  # type: ignore[assignment]
    found = one(drafter(target, model), view(target.encode("a")), DraftLimit(2))
    assert found is not None
    assert text_of(target, found.tokens) == b" wa"
    assert found.confidence[0] == pytest.approx(0.25, rel=1e-3)


def test_auto_drafts_text_where_it_is_cut_otherwise_and_shared_tokens_where_it_is_not() -> None:
    pair = VocabularyPair(COARSE, FINE)
    drafted = {way: set[int]() for way in ("auto", "slem", "tli")}
    truth = COARSE.encode(TEXT)
    for way, tokens in drafted.items():
        for size in range(5, len(truth), 3):
            found = one(drafter(COARSE, speaker(FINE), way), view(truth[:size]))
            tokens.update(found.tokens if found is not None else ())
    unshared = {way: {t for t in tokens if pair.to_draft[t] < 0} for way, tokens in drafted.items()}
    assert unshared["auto"] == unshared["slem"] != set()
    assert unshared["tli"] == set()
    alike = [one(drafter(BYTES, speaker(BYTES), way), view(list(b"the cat"))) for way in ("auto", "tli")]
    assert alike[0] == alike[1] is not None


# --- limits --------------------------------------------------------------------------------------------


@by_pair
def test_limits_hold_in_the_target_s_tokens(ours: str, theirs: str) -> None:
    target = ALL[ours]
    request = view(target.encode(TEXT)[:30])
    for most in (1, 2, 5, 9):
        made = drafter(target, speaker(ALL[theirs]), most=6)
        found = one(made, request, DraftLimit(most))
        assert found is not None
        assert len(found) >= min(most, 6) / 3
    assert one(drafter(target, speaker(ALL[theirs])), request, DraftLimit(0)) is None
    assert one(drafter(target, speaker(ALL[theirs])), view([])) is None


def test_a_draft_ends_where_the_planner_sees_no_use_in_more() -> None:
    request = view(COARSE.encode(TEXT)[:30])
    whole = one(drafter(COARSE, speaker(FINE, sure=6.0)), request)
    assert whole is not None
    survival = np.cumprod(whole.confidence)
    assert survival[-1] < 0.2 < survival[0]
    cut = one(drafter(COARSE, speaker(FINE, sure=6.0)), request, DraftLimit(64, 0.2))
    assert cut is not None
    assert len(cut) < len(whole)


def test_short_drafts_are_dropped_if_asked() -> None:
    request = view(BYTES.encode(TEXT)[:30])
    assert one(drafter(BYTES, speaker(FINE), least=3), request, DraftLimit(2)) is None
    assert one(drafter(BYTES, speaker(FINE), least=3), request, DraftLimit(4)) is not None


def test_the_draft_model_s_end_is_the_target_s() -> None:
    (end,) = FINE.end_tokens
    for way in ("slem", "tli"):
        model = FakeModel(FINE.vocab_size, logits=lambda prefix: np.eye(1, FINE.vocab_size, end)[0] * 9)
        model.tokenizer = FINE  # type: ignore[assignment]
        found = one(drafter(COARSE, model, way), view(COARSE.encode("the cat")))
        assert found is not None
        assert found.tokens == tuple(COARSE.end_tokens)


@pytest.mark.parametrize("way", ["slem", "tli"])
def test_tokens_that_the_request_forbids_are_not_drafted(way: str) -> None:
    banned = dict.fromkeys(range(COARSE.vocab_size), -np.inf)
    params = SamplingParams(logit_bias=banned)
    assert one(drafter(COARSE, speaker(FINE), way), view(COARSE.encode(TEXT)[:9], params=params)) is None


def test_shared_tokens_are_chosen_by_the_request_s_rules() -> None:
    some = dict.fromkeys(COARSE.encode(" the cat"), -np.inf)
    params = SamplingParams(logit_bias=some)
    for size in range(3, 40):
        found = one(drafter(COARSE, speaker(WORDS), "tli"), view(COARSE.encode(TEXT)[:size], params=params))
        assert found is None or not some.keys() & set(found.tokens)


# --- state ---------------------------------------------------------------------------------------------


def test_requests_are_drafted_for_in_one_forward_a_step() -> None:
    model = speaker(FINE)
    made = drafter(BYTES, model)
    texts = [BYTES.encode(TEXT)[:size] for size in (5, 20, 33)]
    requests = [view(text, number) for number, text in enumerate(texts)]
    together = made.draft([(request, DraftLimit(4)) for request in requests])
    assert max(len(batch) for batch in model.forwards) == 3
    assert together == [one(drafter(BYTES, speaker(FINE)), request, DraftLimit(4)) for request in requests]


def test_only_what_changed_is_computed_again() -> None:
    model = speaker(FINE)
    made, target = drafter(WORDS, model, most=4), WORDS
    truth = target.encode(TEXT * 2)
    request = view(truth[:40])
    one(made, request)
    read = len(FINE.encode(text_of(target, request.tokens).decode(errors="ignore")))
    assert sum(len(rows.tokens) for rows in model.forwards[0]) == read
    for _ in range(10):
        position = len(request.tokens)
        found = one(made, request)
        right = 0 if found is None else len(found)
        before = len(FINE.encode(text_of(target, request.tokens).decode(errors="ignore")))
        model.forwards.clear()
        change(made, request, position, truth[position : position + right + 1])
        one(made, request)
        assert model.forwards[0][0].start >= before - 1


def test_nothing_is_read_before_the_first_draft_and_nothing_kept_after_the_last() -> None:
    model = speaker(FINE)
    made, request = drafter(COARSE, model), view(COARSE.encode(TEXT)[:12])
    made.start(request)
    change(made, request, 12, COARSE.encode(TEXT)[12:15])
    assert model.forwards == []
    assert one(made, request) is not None
    assert model.length(0) > 0
    made.stop(request)
    made.stop(request)
    assert model.length(0) == 0
    made.close()
    made.close()
    assert model.closed


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["draft", "commit", "remove"]),
        st.integers(0, 1),
        st.integers(0, 9),
        st.lists(st.integers(0, COARSE.vocab_size - 1), max_size=4),
    ),
    max_size=15,
)


@pytest.mark.parametrize("way", ["slem", "tli", "auto"])
@given(steps=STEPS)
def test_drafts_after_any_history_are_those_of_a_fresh_drafter(
    way: str, steps: list[tuple[str, int, int, list[int]]]
) -> None:
    model = speaker(FINE)
    made = drafter(COARSE, model, way, most=3)
    requests = [view(COARSE.encode(TEXT)[:9], number) for number in range(2)]
    latest: dict[int, Draft | None] = {}
    for action, which, amount, tokens in steps:
        request = requests[which]
        size = len(request.tokens)
        if action == "draft":
            latest[which] = one(made, request)
            assert latest[which] == one(drafter(COARSE, speaker(FINE), way, most=3), request)
        elif action == "commit":
            found = latest.pop(which, None)
            right = list(found.tokens[: amount % 4]) if found is not None else []
            change(made, request, size, [*right, *tokens])
        else:
            change(made, request, max(1, size - amount), tokens)
    for request in requests:
        made.stop(request)
    assert model.cells == 0


def test_a_sampled_draft_is_of_shared_tokens_drawn_from_its_distribution() -> None:
    params = SamplingParams(temperature=1.0, verify="rejection")
    made = drafter(COARSE, speaker(FINE, sure=3.0), "tli")
    chosen = set()
    for number in range(40):
        request = view(COARSE.encode(TEXT)[:9], number, params)
        found = one(made, request, DraftLimit(2))
        made.stop(request)
        assert found is not None
        assert found.probs is not None
        (q, *_) = found.probs
        assert q.sum() == pytest.approx(1.0)
        assert q[found.tokens[0]] > 0
        assert not q[VocabularyPair(COARSE, FINE).to_draft < 0].any()
        chosen.add(found.tokens[0])
    assert len(chosen) > 5
    text = one(drafter(COARSE, speaker(FINE), "slem"), view(COARSE.encode(TEXT)[:9], params=params))
    assert text is not None
    assert text.probs is None
