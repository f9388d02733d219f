"""What goes wrong in one place stays there: interrupts, garbage, failing requests, drafters and models."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator, Sequence

import pytest

from foredraft import Engine, FinishEvent, FinishReason, SamplingParams, TokenEvent
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.engine.commit import verify
from foredraft.errors import BackendError, ConfigError, RequestError
from foredraft.protocols import RequestView
from foredraft.sampling.coupled import CoupledSampler
from foredraft.testing import FakeModel, ScriptedDrafter
from foredraft.types import Draft, Features, Logits, Rows
from matrix import nightly

PROMPT = list(b"abcabc")
BANS_ALL = SamplingParams(max_tokens=10, min_tokens=1, stop_tokens=tuple(range(258)))
TEN = SamplingParams(max_tokens=10, ignore_eos=True)


@pytest.fixture(autouse=True)
def no_hanging() -> Iterator[None]:
    def hangs(*_: object) -> None:
        raise TimeoutError("the engine hangs")

    previous = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def test_aborting_a_streamed_request_ends_its_stream() -> None:
    engine = Engine(FakeModel())
    stream = engine.stream(PROMPT, max_tokens=50)
    next(stream)
    assert engine.abort(stream.request) == []
    end = list(stream)[-1]
    assert isinstance(end, FinishEvent)
    assert end.reason is FinishReason.ABORT


def test_one_request_that_cannot_go_on_does_not_end_the_others() -> None:
    engine = Engine(FakeModel())
    good, bad = engine.run([engine.add(PROMPT, TEN), engine.add(PROMPT, BANS_ALL)])
    assert (good.finish_reason, bad.finish_reason) == (FinishReason.LENGTH, FinishReason.ERROR)
    assert len(good.tokens) == good.usage.completion_tokens == 10
    assert bad.error is not None


@pytest.mark.parametrize("at", range(1, 12))
def test_an_interrupt_anywhere_in_a_round_harms_no_other_request(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [Engine(FakeModel()).generate(prompt, TEN).tokens for prompt in (PROMPT, [7, 8])]
    engine = Engine(FakeModel(), drafters=[ScriptedDrafter(lambda _: [1, 2])])
    calls = [0]

    def interrupted(*args: object) -> object:
        calls[0] += 1
        verdict = verify(*args)  # type: ignore[arg-type]
        if calls[0] == at:
            raise KeyboardInterrupt
        return verdict

    monkeypatch.setattr("foredraft.engine.commit.verify", interrupted)
    ids = [engine.add(PROMPT, TEN), engine.add([7, 8], TEN)]
    try:
        results = engine.run(ids)
    except KeyboardInterrupt:
        assert engine.idle, "what was being run is aborted"
        results = engine.run([engine.add(PROMPT, TEN), engine.add([7, 8], TEN)])
    assert [result.tokens for result in results] == plain


def test_after_an_interrupt_stepping_goes_on_and_a_torn_request_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(FakeModel())
    first, second = engine.add(PROMPT, TEN), engine.add([7, 8], TEN)
    engine.step()
    with monkeypatch.context() as patch:

        def torn(*_: object) -> object:
            raise KeyboardInterrupt

        patch.setattr("foredraft.engine.commit.accept_tokens", torn)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    events = [event for _ in range(12) for event in engine.step()]
    ends = {event.request: event for event in events if isinstance(event, FinishEvent)}
    assert ends[first].reason is FinishReason.ERROR
    assert "interrupted" in (ends[first].error or "")
    assert ends[second].reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "at", [2, 7, 13, *(pytest.param(at, marks=nightly) for at in range(3, 13) if at != 7)]
)
def test_a_stream_collected_as_garbage_in_a_round_harms_nobody(at: int) -> None:
    calls = [0]

    def script(history: Sequence[int]) -> list[int]:
        calls[0] += 1
        if calls[0] == at:
            gc.collect()
        return [1, 2]

    class Holder:
        itself: object = None
        stream: object = None

    gc.disable()
    try:
        engine = Engine(FakeModel(), drafters=[ScriptedDrafter(script)])
        holder = Holder()
        holder.itself, holder.stream = holder, engine.stream([9, 9], max_tokens=30, ignore_eos=True)
        other = engine.stream(PROMPT, max_tokens=30, ignore_eos=True)
        next(other)
        del holder
        end = list(other)[-1]
    finally:
        gc.enable()
    assert isinstance(end, FinishEvent)
    assert end.error is None
    gc.collect()
    assert engine.idle
    assert engine.step() == []


def test_a_failed_drafter_is_closed_and_reported() -> None:
    class Failing(ScriptedDrafter):
        closed = False

        def close(self) -> None:
            self.closed = True

    def explode(_: Sequence[int]) -> list[int]:
        raise RuntimeError("boom")

    drafter = Failing(explode)
    result = Engine(FakeModel(), drafters=[drafter]).generate(PROMPT, TEN)
    assert drafter.closed
    assert not result.speculation.active
    assert "every drafter failed" in (result.speculation.reason or "")


@pytest.mark.parametrize(
    ("trees", "parents"), [(False, (-1, -1)), (True, (-1,)), (True, (-1, 1)), (True, (-2, 0))]
)
def test_a_tree_that_cannot_be_verified_drops_its_drafter(trees: bool, parents: tuple[int, ...]) -> None:
    drafter = ScriptedDrafter(lambda _: Draft((1, 2), "tree", parents=parents), name="tree")
    result = Engine(FakeModel(trees=trees), drafters=[drafter]).generate(PROMPT, TEN)
    assert result.tokens == Engine(FakeModel()).generate(PROMPT, TEN).tokens
    assert "tree" in result.speculation.notes[0]


def test_two_drafters_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="same name"):
        Engine(FakeModel(), drafters=[ScriptedDrafter(lambda _: None), ScriptedDrafter(lambda _: None)])


def test_one_requests_settings_do_not_cost_the_others_their_draft_model() -> None:
    drafter = DraftModelDrafter(FakeModel(), CoupledSampler(258, frozenset({256})))
    engine = Engine(FakeModel(), drafters=[drafter])
    engine.generate(PROMPT, max_tokens=10, min_tokens=3, stop_tokens=tuple(range(258)))
    result = engine.generate(PROMPT, TEN)
    assert result.speculation.acceptance_rate == 1.0


def test_running_an_unknown_request_leaves_the_others_as_they_were() -> None:
    engine = Engine(FakeModel())
    request = engine.add(PROMPT, TEN)
    with pytest.raises(RequestError, match="no request 99"):
        engine.run([request, 99])
    assert len(engine.run([request])[0].tokens) == 10


def test_events_taken_by_step_are_not_silently_missing_from_a_completion() -> None:
    engine = Engine(FakeModel())
    request = engine.add(PROMPT, TEN)
    engine.step()
    with pytest.raises(RequestError, match="already taken"):
        engine.run([request])


def test_last_events_come_in_order_when_a_request_is_aborted_by_hand() -> None:
    engine = Engine(FakeModel())
    followed = engine.stream([1, 2], max_tokens=5, ignore_eos=True)
    by_hand = engine.add(PROMPT, TEN)
    next(followed)
    next(followed)
    events = engine.abort(by_hand)
    assert [type(event) for event in events] == [TokenEvent, TokenEvent, FinishEvent]
    assert engine.step() == []


def test_a_waiting_prompt_is_not_starved_by_long_drafts() -> None:
    model = FakeModel(sequences=4, max_batch=32, max_rows=32)
    engine = Engine(model, drafters=[ScriptedDrafter(lambda _: [3] * 40)])
    for i in range(3):
        engine.add([i + 1], SamplingParams(max_tokens=200, ignore_eos=True))
    for _ in range(3):
        engine.step()
    late = engine.add(list(range(40)), SamplingParams(max_tokens=1))
    for _ in range(8):
        if any(isinstance(event, FinishEvent) and event.request == late for event in engine.step()):
            return
    pytest.fail("the prompt got no rows")


def test_a_prompt_that_never_ran_has_no_prompt_time() -> None:
    engine = Engine(FakeModel(sequences=1))
    engine.add(PROMPT, TEN)
    waiting = engine.add([1, 2, 3], TEN)
    engine.step()
    [end] = engine.abort(waiting)
    assert isinstance(end, FinishEvent)
    assert (end.timings.prompt_n, end.timings.prompt_ms) == (0, 0.0)


def test_greedy_with_a_sampled_rule_is_still_exact() -> None:
    result = Engine(FakeModel()).generate(PROMPT, max_tokens=3, verify="rejection")
    assert result.speculation.exact


class Faulty(FakeModel):
    """Fails in one operation on one sequence, as long as `broken` names it."""

    broken: tuple[str, int] = ("", -1)

    def _break(self, operation: str, seq: int) -> None:
        if self.broken == (operation, seq):
            raise BackendError(f"{operation} failed")

    def forward(self, batch: Sequence[Rows]) -> Logits:
        for rows in batch:
            self._break("forward", rows.seq)
        return super().forward(batch)

    def truncate(self, seq: int, length: int) -> None:
        self._break("truncate", seq)
        super().truncate(seq, length)

    def fork(self, src: int, dst: int, length: int) -> None:
        self._break("fork", dst)
        super().fork(src, dst, length)


def test_a_failing_forward_ends_the_requests_in_it_and_no_other() -> None:
    model = Faulty(max_batch=64, sequences=3)
    engine = Engine(model)
    ids = [engine.add(prompt, TEN) for prompt in (PROMPT, [5] * 500, [6] * 600)]
    engine.step()
    model.broken = ("forward", 1)
    events = engine.step()
    assert [(event.request, type(event)) for event in events] == [
        (ids[0], FinishEvent),
        (ids[1], FinishEvent),
    ], "the third had no rows in that forward"
    assert {event.error for event in events if isinstance(event, FinishEvent)} == {"forward failed"}
    assert engine.kv_tokens == model.cells == 0, "nothing of what failed is kept"
    model.broken = ("", -1)
    [result] = engine.run([ids[2]])
    assert result.tokens == Engine(FakeModel()).generate([6] * 600, TEN).tokens


def test_a_request_whose_draft_cannot_be_taken_back_ends_alone_with_all_its_tokens() -> None:
    model = Faulty()
    engine = Engine(model, drafters=[ScriptedDrafter(lambda _: [1, 2])])
    streams = [engine.stream(prompt, TEN) for prompt in (PROMPT, [7, 8])]
    for stream in streams:
        next(stream)
    model.broken = ("truncate", 0)
    bad, good = (list(stream) for stream in streams)
    assert isinstance(bad[-1], FinishEvent)
    assert (bad[-1].reason, bad[-1].error) == (FinishReason.ERROR, "truncate failed")
    assert bad[-1].usage.completion_tokens == len(bad), "the one read before, and all but the last event"
    assert isinstance(good[-1], FinishEvent)
    assert good[-1].reason is FinishReason.LENGTH


def test_a_prefix_that_cannot_be_reused_is_computed_again() -> None:
    for operation, seq in (("fork", 1), ("truncate", 0)):
        model = Faulty(sequences=2)
        engine = Engine(model)
        shared = [1] * 20
        first = engine.generate([*shared, *range(30)], max_tokens=5, ignore_eos=True)
        model.broken = (operation, seq)
        prompt = shared if operation == "fork" else [*shared, *range(29), 9]
        again = engine.generate(prompt, max_tokens=5, ignore_eos=True)
        assert (again.finish_reason, again.usage.cached_tokens) == (FinishReason.LENGTH, 0)
        assert again.tokens == Engine(FakeModel()).generate(prompt, max_tokens=5, ignore_eos=True).tokens
        assert first.error is None


def test_a_round_that_cannot_be_mended_ends_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Faulty()
    engine = Engine(model)
    ids = [engine.add(PROMPT, TEN), engine.add([7, 8], TEN)]
    engine.step()
    with monkeypatch.context() as patch:

        def torn(*_: object) -> object:
            raise KeyboardInterrupt

        patch.setattr("foredraft.engine.commit.verify", torn)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    model.broken = ("truncate", 0)
    events = [event for _ in range(12) for event in engine.step()]
    ends = {event.request: event for event in events if isinstance(event, FinishEvent)}
    assert (ends[ids[0]].reason, ends[ids[0]].error) == (FinishReason.ERROR, "truncate failed")
    assert ends[ids[1]].reason is FinishReason.LENGTH


class Emptying(FakeModel):
    """`interrupted`: its next forward with rows of sequence 0 is, and leaves nothing of this sequence."""

    interrupted = False

    def forward(self, batch: Sequence[Rows]) -> Logits:
        if self.interrupted and any(rows.seq == 0 for rows in batch):
            self.interrupted = False
            self.release(0)
            raise KeyboardInterrupt
        return super().forward(batch)


def test_a_sequence_that_an_interrupt_has_emptied_ends_its_request_only() -> None:
    model = Emptying()
    engine = Engine(model)
    ids = [engine.add(PROMPT, TEN), engine.add([7, 8], TEN)]
    engine.step()
    model.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    events = [event for _ in range(12) for event in engine.step()]
    ends = {event.request: event for event in events if isinstance(event, FinishEvent)}
    assert ends[ids[0]].reason is FinishReason.ERROR
    assert "interrupted" in (ends[ids[0]].error or "")
    assert ends[ids[1]].reason is FinishReason.LENGTH


def test_a_sequence_that_an_interrupt_has_emptied_is_not_kept() -> None:
    model = Emptying(sequences=2)
    engine = Engine(model)
    request = engine.add([*range(40)], TEN)
    engine.step()
    model.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.abort(request)
    engine.step()
    kept = engine._scheduler.cache._slots[0]
    assert (kept.tokens, model.length(0)) == ((), 0)


class Absorbing(ScriptedDrafter):
    """It counts the rows of features that it gets."""

    absorbed = 0

    def absorb(self, request: RequestView, start: int, features: Features) -> None:

        self.absorbed += len(features)


@pytest.mark.parametrize("features", [(), ("layer:1",)])
def test_a_drafter_that_absorbs_drafts_for_any_model(features: tuple[str, ...]) -> None:
    drafter = Absorbing(lambda _: [1, 2])
    engine = Engine(FakeModel(features=features), drafters=[drafter])
    answer = engine.generate(PROMPT, TEN)
    assert answer.tokens == Engine(FakeModel()).generate(PROMPT, TEN).tokens
    assert answer.error is None
    assert engine.notes == ()
    assert drafter.absorbed == (len(PROMPT) + 9 if features else 0)  # the last token's row is not computed
