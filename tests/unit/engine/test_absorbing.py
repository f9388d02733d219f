"""Which hidden states reach a drafter: all that it may read, at the right time, and no others are copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from foredraft import Engine, SamplingParams
from foredraft.backends.part import split
from foredraft.drafters.heads import HeadsDrafter
from foredraft.engine.absorbing import BLOCK, PATIENCE, Absorber
from foredraft.engine.drafting import Drafters
from foredraft.planner import StaticPlanner
from foredraft.protocols import Model, RequestView
from foredraft.sampling.coupled import CoupledSampler
from foredraft.testing import FakeHead, FakeModel, ScriptedDrafter, markov_logits
from foredraft.types import Draft, DraftLimit, Features, Load, Rows

VOCAB = 24
LOGITS = markov_logits(VOCAB, order=1, seed=3, scale=1.5)
PROMPT = [i % VOCAB for i in range(700)]


class Counting(FakeModel):
    """It counts the rows whose features were copied."""

    def __init__(self, sequences: int = 4) -> None:
        super().__init__(VOCAB, logits=LOGITS, features=("layer:1", "next"), sequences=sequences)
        self.copied = 0

    def features(self, rows: Sequence[int] | None = None) -> Features:
        found = super().features(rows)
        self.copied += len(found)
        return found


class At(StaticPlanner):
    """It asks in rounds that `when` says, counted from 0."""

    def __init__(self, when: Callable[[int], bool]) -> None:
        super().__init__()
        self._when = when
        self._rounds = 0

    def limits(
        self, requests: Sequence[RequestView], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        self._rounds += 1
        return super().limits(requests, load) if self._when(self._rounds - 1) else {}


class Noting(ScriptedDrafter):
    """It notes the tokens whose features it gets, and those that it had when it was asked."""

    def __init__(self, reads: int) -> None:
        super().__init__(lambda _: [1, 2])
        self.reads = reads
        self.seen: list[int] = []
        self.asked: list[tuple[int, list[int]]] = []

    def absorb(self, request: RequestView, start: int, features: Features) -> None:
        self.seen += range(start, start + len(features))

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        self.asked += [(len(request.tokens), list(self.seen)) for request, _ in requests]
        return super().draft(requests)


def never(_: int) -> bool:
    return False


def of_length(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, ignore_eos=True)


def answer(engine: Engine, tokens: int, prompt: Sequence[int] = PROMPT) -> None:
    """Generate, and compare with what the target says by itself."""
    said = engine.generate(prompt, of_length(tokens))
    plain = Engine(FakeModel(VOCAB, logits=LOGITS)).generate(prompt, of_length(tokens))
    assert (said.tokens, said.error, engine.notes) == (plain.tokens, None, ())


@pytest.mark.parametrize("reads", [2, 100, 600])
def test_of_a_prompt_only_rows_that_may_be_read_are_copied(reads: int) -> None:
    model, drafter = Counting(), Noting(reads)
    answer(Engine(model, drafters=[drafter], planner=At(never)), 1)
    assert drafter.seen == list(range(len(PROMPT) - reads, len(PROMPT)))
    assert model.copied == reads


def test_a_drafter_that_reads_all_gets_all() -> None:
    drafter = Noting(0)
    answer(Engine(Counting(), drafters=[drafter], planner=At(never)), 5)
    assert drafter.seen == list(range(len(PROMPT) + 4))


def test_a_drafter_of_one_row_gets_it_when_it_is_asked() -> None:
    model, drafter = Counting(), Noting(1)
    answer(Engine(model, drafters=[drafter], planner=At(lambda i: i in (0, 7, 8))), 30)
    assert model.copied == 3
    assert [seen[-1] for _, seen in drafter.asked] == [length - 2 for length, _ in drafter.asked]
    assert drafter.asked[0] == (len(PROMPT) + 1, [len(PROMPT) - 1])


def test_a_drafter_that_is_not_asked_for_long_gets_nothing_until_it_is() -> None:
    model, drafter, late = Counting(), Noting(64), PATIENCE + 40
    planner = At(lambda i: i in (late, late + 10))
    answer(Engine(model, drafters=[drafter], planner=planner), late + 60)
    (length, first), (again, then) = drafter.asked
    end = len(PROMPT) + PATIENCE
    assert first == [*range(len(PROMPT) - 64, end), length - 2]
    assert then[: len(first)] == first
    assert then[len(first) :] == list(range(length - 1, again - 1)), "and all again from then on"
    assert len(drafter.seen) == model.copied


def test_one_that_is_put_back_gets_them_and_one_that_made_room_does_not() -> None:
    drafters, first, second = Drafters([Noting(0)], VOCAB), Noting(0), Noting(1)
    view, model = RequestView(1, PROMPT[:6]), Counting()
    model.forward([Rows(0, 0, PROMPT[:5], 0)])
    drafters.make_room(["scripted"])
    assert not drafters.absorbing
    drafters.absorb(view, 0, range(5), model.features)
    assert model.copied == 0
    for drafter, seen in ((first, list(range(5))), (second, [])):
        drafters.put_back(drafter)
        drafters.absorb(view, 0, range(5), model.features)
        assert drafter.seen == seen


def test_many_rows_come_in_blocks() -> None:
    absorber = Absorber(lambda *_: None, 0)
    assert list(absorber.takes(1, 0, 2 * BLOCK + 3, 0)) == [(0, BLOCK), (BLOCK, BLOCK), (2 * BLOCK, 3)]
    assert list(absorber.takes(2, 5, 1, 0)) == [(0, 1)]


def test_a_request_that_ended_leaves_nothing() -> None:
    absorber = Absorber(lambda *_: None, 0)
    for _ in range(PATIENCE):
        assert list(absorber.takes(1, 0, 1, 0))
    assert not list(absorber.takes(1, 0, 1, 0))
    absorber.stop(1)
    assert list(absorber.takes(1, 0, 1, 0))


def with_head(model: Model, head: FakeHead, planner: StaticPlanner) -> Engine:
    sampler = CoupledSampler(VOCAB, frozenset())
    drafter = HeadsDrafter(head, sampler, end_tokens=frozenset())
    return Engine(model, drafters=[drafter], planner=planner)


@pytest.mark.parametrize("window", [0, 1, 3])
@pytest.mark.parametrize("every", [1, 3, PATIENCE + 5])
def test_a_head_gets_the_features_of_its_text_whenever_it_is_asked(window: int, every: int) -> None:
    """FakeHead raises for features of another text or position."""
    model = Counting()
    engine = with_head(model, FakeHead(model, window=window), At(lambda i: i % every == every - 1))
    for prompt in (PROMPT, PROMPT[:9]):
        answer(engine, 200, prompt)
    said = engine.generate(PROMPT[:40], of_length(200))
    stats = said.speculation.drafters["heads"]
    assert stats.accepted == stats.drafted > 0


def test_requests_side_by_side_each_get_their_own() -> None:
    model = Counting()
    engine = with_head(model, FakeHead(model, window=1), At(lambda i: i % 2 == 0))
    ids = [engine.add(PROMPT[start:], of_length(50)) for start in (0, 300, 650)]
    for completion in engine.run(ids):
        stats = completion.speculation.drafters["heads"]
        assert stats.accepted == stats.drafted > 0
    assert engine.notes == ()


@pytest.mark.parametrize("window", [0, 1])
def test_engines_on_one_model_do_not_read_one_anothers(window: int) -> None:
    whole = Counting(sequences=2)
    heads = [FakeHead(whole, window=window) for _ in range(2)]
    engines = [
        with_head(part, head, At(lambda _: True)) for part, head in zip(split(whole, 2), heads, strict=True)
    ]
    streams = [engine.stream(PROMPT[i:], of_length(60)) for i, engine in enumerate(engines)]
    for _ in range(30):  # each computes a forward between the other's forward and draft
        for engine in engines:
            engine.step()
    for i, (engine, stream) in enumerate(zip(engines, streams, strict=True)):
        plain = Engine(FakeModel(VOCAB, logits=LOGITS)).generate(PROMPT[i:], of_length(60))
        assert [event.token for event in stream if hasattr(event, "token")] == list(plain.tokens)
        assert engine.notes == ()


def test_a_part_has_no_features_of_anothers_forward() -> None:
    one, other = split(Counting(sequences=2), 2)
    one.forward([Rows(0, 0, [1, 2, 3], 1)])
    assert one.features([2]).tolist() == one.features()[2:].tolist()
    other.forward([Rows(0, 0, [4], 1)])
    with pytest.raises(Exception, match="another part"):
        one.features([2])
    assert other.features([0]).shape == (1, 4)
