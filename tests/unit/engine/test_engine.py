"""The engine's rules, on a model without weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft import Engine, FinishEvent, FinishReason, SamplingParams, TokenEvent
from foredraft.errors import BackendError, ContextLengthError, OutOfKVError, RequestError
from foredraft.protocols import RequestView
from foredraft.testing import FakeModel, ScriptedDrafter, assert_lossless, markov_logits
from foredraft.types import TARGET, Draft, Logits, Rows

PROMPT = list(b"abcabc")


def plain(prompt: Sequence[int] = PROMPT, *, model: FakeModel | None = None, **options: object) -> list[int]:
    with Engine(model or FakeModel()) as engine:
        return list(engine.generate(prompt, SamplingParams(**options)).tokens)  # type: ignore[arg-type]


def oracle(text: Sequence[int], length: int = 5) -> ScriptedDrafter:
    """Drafts the true continuation of a history that is a prefix of `text`."""
    return ScriptedDrafter(lambda history: text[len(history) : len(history) + length], name="oracle")


def test_oracle_drafts_are_all_accepted_and_credited() -> None:
    text = PROMPT + plain(max_tokens=40)
    engine = Engine(FakeModel(), drafters=[oracle(text)])
    result = engine.generate(PROMPT, max_tokens=40)
    assert list(result.tokens) == text[len(PROMPT) :]
    stats = result.speculation
    assert stats.acceptance_rate == 1.0
    assert stats.acceptance_length is not None
    assert stats.acceptance_length > 5
    assert result.origins.count("oracle") == stats.drafters["oracle"].accepted == 32
    assert result.origins[0] == TARGET
    assert sum(stats.accepted_by_depth) == 32


@given(
    drafts=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=8),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_any_draft_gives_the_same_text(drafts: list[list[int]], temperature: float) -> None:
    def script(history: Sequence[int]) -> list[int]:
        return drafts[len(history) % len(drafts)]

    origins = assert_lossless(
        lambda: FakeModel(6, logits=markov_logits(6, order=2), context_length=80),
        lambda _model: [ScriptedDrafter(script)],
        [[0, 1], [2, 3, 4]],
        SamplingParams(temperature=temperature, seed=3, max_tokens=30, ignore_eos=True),
    )
    assert origins.get(TARGET, 0) > 0


def random_tree(history: Sequence[int]) -> Draft:
    a, b = len(history) % 5, (len(history) + 1) % 5
    return Draft((a, b, 2, 3, b), "tree", parents=(-1, -1, 0, 1, 3))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("concurrent", [False, True])
def test_trees_give_the_same_text(temperature: float, concurrent: bool) -> None:
    origins = assert_lossless(
        lambda: FakeModel(6, logits=markov_logits(6, order=1)),
        lambda _model: [ScriptedDrafter(random_tree, name="tree")],
        [[0], [1, 2], [3, 3, 3]],
        SamplingParams(temperature=temperature, seed=9, max_tokens=60, ignore_eos=True),
        concurrent=concurrent,
    )
    assert origins["tree"] > 10


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
def test_end_token_inside_an_accepted_run_ends_the_text_there(rule: str) -> None:
    def logits(prefix: Sequence[int]) -> Logits:
        row = markov_logits(258)(prefix) * 0
        row[256 if len(prefix) == 10 else 65 + len(prefix) % 3] = 9.0
        return row

    model = FakeModel(logits=logits)
    text = PROMPT + plain(model=FakeModel(logits=logits))
    drafter = ScriptedDrafter(lambda h: [*text[len(h) : len(h) + 8], 65, 65][:8], name="oracle")
    engine = Engine(model, drafters=[drafter])
    events = list(engine.stream(PROMPT, verify=rule))  # type: ignore[arg-type]
    tokens = [event.token for event in events if isinstance(event, TokenEvent)]
    assert tokens == text[len(PROMPT) :]
    assert tokens[-1] == 256
    end = events[-1]
    assert isinstance(end, FinishEvent)
    assert end.reason is FinishReason.STOP
    assert end.usage.completion_tokens == len(tokens) == 5
    assert model.length(0) == len(PROMPT) + 4, "nothing past the end stays in the cache"


def test_stop_string_across_tokens_cuts_text_and_keeps_nothing_after() -> None:
    whole = plain(max_tokens=60)
    text = bytes(token for token in whole if token < 256).decode("utf-8", "replace")
    stop = text[9:12]
    at = text.find(stop)
    engine = Engine(FakeModel(), drafters=[oracle(PROMPT + whole, 7)])
    result = engine.generate(PROMPT, max_tokens=60, stop=(stop,))
    assert result.finish_reason is FinishReason.STOP
    assert result.text == text[:at]
    assert list(result.tokens) == whole[: len(result.tokens)]
    assert len(result.tokens) == result.usage.completion_tokens < 60


def test_context_full_is_length_and_never_an_exception() -> None:
    for drafters in ([], [oracle(PROMPT + plain(ignore_eos=True), 9)]):
        engine = Engine(FakeModel(context_length=32), drafters=drafters)
        result = engine.generate(PROMPT, ignore_eos=True)
        assert result.finish_reason is FinishReason.LENGTH
        assert result.usage.prompt_tokens + result.usage.completion_tokens == 32


@pytest.mark.parametrize("count", [1, 2, 7])
def test_max_tokens_is_exact_with_and_without_drafts(count: int) -> None:
    text = PROMPT + plain(max_tokens=40)
    engine = Engine(FakeModel(), drafters=[oracle(text, 30)])
    result = engine.generate(PROMPT, max_tokens=count)
    assert list(result.tokens) == text[len(PROMPT) : len(PROMPT) + count]
    assert result.finish_reason is FinishReason.LENGTH


def test_concurrent_requests_share_forwards_and_match_each_alone() -> None:
    prompts = [[1, 2, 3], [4], [5, 5, 5, 5, 5], [9, 1], [7]]
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=25, ignore_eos=True)
    alone = [plain(prompt, temperature=0.8, seed=1, max_tokens=25, ignore_eos=True) for prompt in prompts]
    model = FakeModel(sequences=3)
    engine = Engine(model, drafters=[oracle(prompts[0] + alone[0], 4)])
    results = engine.run([engine.add(prompt, params) for prompt in prompts])
    assert [list(result.tokens) for result in results] == alone
    assert max(len(batch) for batch in model.forwards) == 3


def test_second_turn_reuses_the_prefix_and_an_edited_one_what_is_left() -> None:
    model = FakeModel()
    engine = Engine(model)
    first = engine.generate(PROMPT, max_tokens=10)
    history = PROMPT + list(first.tokens)
    second = engine.generate([*history, 7, 8], max_tokens=3)
    assert second.usage.cached_tokens == len(history) - 1, "the last token was never computed"
    edited = [*PROMPT, 99, 98, 97]
    third = engine.generate(edited, max_tokens=5)
    assert third.usage.cached_tokens == len(PROMPT)
    assert list(third.tokens) == plain(edited, max_tokens=5)


def test_prefixes_of_another_scope_are_not_reused() -> None:
    engine = Engine(FakeModel(sequences=1))
    engine.run([engine.add(PROMPT, SamplingParams(max_tokens=3), scope="alice")])
    [result] = engine.run([engine.add(PROMPT, SamplingParams(max_tokens=3), scope="bob")])
    assert result.usage.cached_tokens == 0


def test_abort_frees_the_place_and_reports_what_was_made() -> None:
    model = FakeModel(sequences=1)
    engine = Engine(model)
    request = engine.add(PROMPT, SamplingParams(max_tokens=50))
    waiting = engine.add([1], SamplingParams(max_tokens=2))
    for _ in range(4):
        engine.step()
    [end] = engine.abort(request)
    assert isinstance(end, FinishEvent)
    assert (end.reason, end.usage.completion_tokens) == (FinishReason.ABORT, 4)
    assert engine.abort(request) == []
    [result] = engine.run([waiting])
    assert len(result.tokens) == 2
    assert engine.idle


def test_stop_ends_a_request_with_its_text_and_says_why() -> None:
    engine = Engine(FakeModel(sequences=1))
    started: list[int] = []
    engine.on_start = lambda view, cached: started.append(view.id)
    running = engine.add(PROMPT, SamplingParams(max_tokens=50))
    waiting = engine.add([1], SamplingParams(max_tokens=2))
    for _ in range(4):
        engine.step()
    for request, tokens in ((running, 4), (waiting, 0)):
        [end] = engine.stop(request, "Enough.")
        assert isinstance(end, FinishEvent)
        assert (end.reason, end.notice, end.error) == (FinishReason.STOPPED, "Enough.", None)
        assert end.usage.completion_tokens == tokens
        assert engine.stop(request, "Again.") == []
    assert started == [running], "the other one never had a place"
    assert engine.idle


def test_closing_a_stream_early_aborts_its_request() -> None:
    engine = Engine(FakeModel())
    stream = engine.stream(PROMPT, max_tokens=50)
    next(stream)
    stream.close()
    assert engine.idle


def test_long_prompts_are_prefilled_in_chunks_beside_decoding() -> None:
    model = FakeModel(max_batch=8, max_rows=8)
    engine = Engine(model)
    first = engine.add([1, 2], SamplingParams(max_tokens=30, ignore_eos=True))
    second = engine.add(list(range(30)), SamplingParams(max_tokens=3, ignore_eos=True))
    results = engine.run([first, second])
    assert list(results[0].tokens) == plain([1, 2], max_tokens=30, ignore_eos=True)
    assert list(results[1].tokens) == plain(list(range(30)), max_tokens=3, ignore_eos=True)
    assert all(sum(len(rows.tokens) for rows in batch) <= 8 for batch in model.forwards)


class Failing(FakeModel):
    """Fails on the nth forward."""

    def __init__(self, at: int, error: Exception, *, sequences: int = 4) -> None:
        super().__init__(sequences=sequences)
        self.at, self.error = at, error

    def forward(self, batch: Sequence[Rows]) -> Logits:
        if len(self.forwards) == self.at:
            self.forwards.append(())
            raise self.error
        return super().forward(batch)


def test_backend_failure_ends_the_request_not_the_engine() -> None:
    engine = Engine(Failing(3, BackendError("boom")))
    result = engine.generate(PROMPT, max_tokens=10)
    assert result.finish_reason is FinishReason.ERROR
    assert result.error == "boom"
    assert engine.generate(PROMPT, max_tokens=10).finish_reason is FinishReason.LENGTH


def test_out_of_kv_holds_up_the_youngest_request_only() -> None:
    engine = Engine(Failing(4, OutOfKVError("full"), sequences=2))
    ids = [engine.add([i + 1], SamplingParams(max_tokens=10, ignore_eos=True)) for i in range(2)]
    old, young = engine.run(ids)
    assert list(old.tokens) == plain([1], max_tokens=10, ignore_eos=True)
    assert list(young.tokens) == plain([2], max_tokens=10, ignore_eos=True)
    assert (engine.preemptions, young.error) == (1, None)


def test_a_failing_drafter_is_dropped_with_a_note_and_the_text_is_unharmed() -> None:
    def explode(history: Sequence[int]) -> list[int]:
        if len(history) > 10:
            raise RuntimeError("bug in a plugin")
        return [1]

    engine = Engine(FakeModel(), drafters=[ScriptedDrafter(explode)])
    result = engine.generate(PROMPT, max_tokens=20)
    assert list(result.tokens) == plain(max_tokens=20)
    assert any("bug in a plugin" in note for note in result.speculation.notes)


@pytest.mark.parametrize("draft", [[999], [-1], [1] * 70])
def test_an_invalid_draft_never_reaches_the_model(draft: list[int]) -> None:
    class Unchecked(ScriptedDrafter):
        def draft(self, requests):  # type: ignore[no-untyped-def]
            return [Draft(tuple(draft), self.name) for _ in requests]

    engine = Engine(FakeModel(), drafters=[Unchecked(lambda _: None)])
    result = engine.generate(PROMPT, max_tokens=12)
    assert list(result.tokens) == plain(max_tokens=12)
    assert result.speculation.notes


def test_drafters_hear_of_every_request_and_every_token() -> None:
    drafter = ScriptedDrafter(lambda history: [1, 2, 3] if len(history) % 2 else None)
    engine = Engine(FakeModel(), drafters=[drafter])
    result = engine.generate(PROMPT, max_tokens=20)
    assert [token for outcome in drafter.outcomes for token in outcome.tokens] == list(result.tokens)
    assert drafter.open == set()


def test_logprobs_are_the_same_for_speculated_tokens() -> None:
    text = PROMPT + plain(max_tokens=20)
    with Engine(FakeModel()) as off, Engine(FakeModel(), drafters=[oracle(text)]) as on:
        without = off.generate(PROMPT, max_tokens=20, logprobs=3)
        drafted = on.generate(PROMPT, max_tokens=20, logprobs=3)
    assert "oracle" in drafted.origins
    assert drafted.logprobs == without.logprobs
    assert all(entry.logprob < 0 and len(entry.top) == 3 for entry in drafted.logprobs)


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ([], RequestError),
        ("", RequestError),
        ([300], RequestError),
        ([1] * 64, ContextLengthError),
        ([{"role": "user"}, 3], RequestError),
    ],
)
def test_impossible_prompts_are_refused_before_anything_runs(
    prompt: list[int], error: type[Exception]
) -> None:
    engine = Engine(FakeModel(context_length=64))
    with pytest.raises(error):
        engine.stream(prompt)
    assert engine.idle


def test_sampling_settings_are_checked() -> None:
    engine = Engine(FakeModel())
    with pytest.raises(RequestError, match="temperature"):
        engine.generate(PROMPT, temperature=-1)
    with pytest.raises(RequestError, match="tempereture"):
        engine.generate(PROMPT, tempereture=1)  # type: ignore[call-arg]
    with pytest.raises(RequestError, match="not both"):
        engine.generate(PROMPT, SamplingParams(), temperature=1)


def test_the_same_seed_gives_the_same_text_and_another_seed_another() -> None:
    first, again, other = (
        plain(seed=seed, temperature=1.0, max_tokens=20, ignore_eos=True) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_speculation_says_whether_it_is_exact() -> None:
    exact = Engine(FakeModel()).generate(PROMPT, max_tokens=3).speculation
    assert exact.exact
    model = FakeModel().with_capabilities(batch_invariant=False, invariance_note="differs from 3 rows on")
    varying = Engine(model).generate(PROMPT, max_tokens=3).speculation
    assert (varying.exact, varying.exact_reason) == (False, "differs from 3 rows on")
    rejecting = Engine(FakeModel()).generate(PROMPT, max_tokens=3, temperature=1.0, verify="rejection")
    assert not rejecting.speculation.exact


def test_views_keep_one_list_for_the_history() -> None:
    seen: list[RequestView] = []

    class Watching(ScriptedDrafter):
        def start(self, request: RequestView) -> None:
            seen.append(request)

    engine = Engine(FakeModel(), drafters=[Watching(lambda _: None)])
    result = engine.generate(PROMPT, max_tokens=5)
    assert seen[0].tokens == PROMPT + list(result.tokens)
    assert seen[0].prompt_length == len(PROMPT)


def test_two_streams_of_one_engine_can_be_read_in_turns() -> None:
    engine = Engine(FakeModel())
    prompts = [[1, 2, 3], [4, 5]]
    expected = [plain(prompt, max_tokens=12, ignore_eos=True) for prompt in prompts]
    streams = [engine.stream(prompt, max_tokens=12, ignore_eos=True) for prompt in prompts]
    seen: list[list[int]] = [[], []]
    for i in (0, 0, 1, 0, 1, 1, 1, 0):
        event = next(streams[i])
        assert isinstance(event, TokenEvent)
        seen[i].append(event.token)
    for i, stream in enumerate(streams):
        seen[i] += [event.token for event in stream if isinstance(event, TokenEvent)]
    assert seen == expected
    assert engine.idle


def test_requests_added_by_hand_are_not_lost_while_a_stream_is_read() -> None:
    engine = Engine(FakeModel())
    request = engine.add([4, 5], SamplingParams(max_tokens=6, ignore_eos=True))
    list(engine.stream([1, 2, 3], max_tokens=20, ignore_eos=True))
    [result] = engine.run([request])
    assert list(result.tokens) == plain([4, 5], max_tokens=6, ignore_eos=True)
    with pytest.raises(RequestError, match="no request"):
        engine.run([request])


def test_a_stream_that_is_dropped_frees_its_place() -> None:
    engine = Engine(FakeModel(sequences=1))
    engine.stream(PROMPT, max_tokens=50)
    assert engine.idle


def test_a_closed_engine_says_so() -> None:
    engine = Engine(FakeModel())
    engine.close()
    engine.close()
    with pytest.raises(RequestError, match="closed"):
        engine.generate(PROMPT)


def test_an_interrupted_round_leaves_no_false_prefix() -> None:
    text = PROMPT + plain(max_tokens=30)

    class Interrupted(FakeModel):
        def truncate(self, seq: int, length: int) -> None:
            if len(self.forwards) == 3:
                self.forwards.append(())
                raise KeyboardInterrupt
            super().truncate(seq, length)

    model = Interrupted()
    engine = Engine(model, drafters=[oracle([*text[:-1], 99], 6)])
    stream = engine.stream(PROMPT, max_tokens=30)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    stream.close()
    for prompt in (text, [*text[:12], 1, 2, 3]):
        assert list(engine.generate(prompt, max_tokens=10).tokens) == plain(prompt, max_tokens=10)


def test_numpy_integers_are_token_ids_and_messages_need_a_role() -> None:
    engine = Engine(FakeModel())
    assert engine.encode(np.array([1, 2, 3])) == [1, 2, 3]  # type: ignore[arg-type]
    for broken in ([{"content": "x"}], [{"role": "user"}], [True, False], [1.5]):
        with pytest.raises(RequestError):
            engine.encode(broken)  # type: ignore[arg-type]
