"""Recording in use: what an engine answered is in the file, and nothing waits for it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from foredraft import Engine, SamplingParams
from foredraft.bench import recorder as module
from foredraft.bench.curves import Curve
from foredraft.bench.recorder import TraceRecorder
from foredraft.bench.replay import replay
from foredraft.bench.trace import Trace, read_traces
from foredraft.bench.trace_file import TraceFile
from foredraft.errors import ConfigError
from foredraft.testing import FakeModel
from foredraft.types import Completion


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traces.jsonl"


def answered(engine: Engine, *prompts: list[int], tokens: int = 12) -> list[Completion]:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return engine.run([engine.add(prompt, params, prediction=[7, 8]) for prompt in prompts])


def test_answers_are_recorded_as_they_were_and_can_be_replayed(path: Path) -> None:
    with TraceRecorder(path) as recorder, Engine(FakeModel()) as engine:
        engine.set_speculation("suffix")
        recorder.watch(engine)
        done = answered(engine, [5, 6], [5, 6, 7], [5, 6])
    recorded = read_traces(path)
    assert (recorded.model, recorded.vocab_hash) == ("fake", engine.model.info.vocab_hash)
    assert sorted((trace.prompt, trace.output) for trace in recorded.traces) == sorted(
        (prompt, completion.tokens)
        for prompt, completion in zip([(5, 6), (5, 6, 7), (5, 6)], done, strict=True)
    )
    assert {trace.prediction for trace in recorded.traces} == {(7, 8)}
    assert len({trace.id for trace in recorded.traces}) == 3
    assert recorder.written == 3
    assert len(replay(recorded, Curve("c", {1: 1.0, 8: 2.0}), "auto").rows) == 3


def test_a_request_given_up_is_not_recorded(path: Path) -> None:
    with TraceRecorder(path) as recorder, Engine(FakeModel()) as engine:
        recorder.watch(engine)
        request = engine.add([5, 6], SamplingParams(max_tokens=50, ignore_eos=True))
        engine.step()
        engine.step()
        engine.abort(request)
        answered(engine, [1, 2])
    assert [trace.prompt for trace in read_traces(path).traces] == [(1, 2)]


def test_nobody_waits_for_a_slow_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    real = TraceFile.append

    def slow(self: TraceFile, trace: Trace) -> bool:
        go_on.wait(20)
        return real(self, trace)

    monkeypatch.setattr(module, "WAITING", 2)
    monkeypatch.setattr(TraceFile, "append", slow)
    recorder = TraceRecorder(path)
    with Engine(FakeModel()) as engine:
        recorder.watch(engine)
        done = answered(engine, *([n, 1] for n in range(8)), tokens=2)
        assert not any(completion.error for completion in done)
        assert recorder.lost >= 5
        go_on.set()
        recorder.close()
    assert recorder.written + recorder.lost == 8
    assert len(read_traces(path).traces) == recorder.written > 0
    assert caplog.text.count("the disk is too slow") == 1


@pytest.mark.parametrize(("problem", "says"), [(None, "has reached 700 bytes"), (28, "No space left")])
def test_what_cannot_be_written_is_said_once_and_requests_go_on(
    path: Path,
    problem: int | None,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if problem is not None:

        def full(self: TraceFile, trace: Trace) -> bool:
            raise OSError(problem, "No space left on device")

        monkeypatch.setattr(TraceFile, "append", full)
    with TraceRecorder(path, most_bytes=700) as recorder, Engine(FakeModel()) as engine:
        recorder.watch(engine)
        done = answered(engine, *([n, 1] for n in range(20)))
    assert not any(completion.error for completion in done)
    assert recorder.lost > 1
    assert recorder.written + recorder.lost == 20
    assert caplog.text.count(says) == 1
    assert len(read_traces(path).traces) == recorder.written


def test_a_second_model_with_the_same_tokens_and_one_with_others(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = [FakeModel(name="a"), FakeModel(name="b"), FakeModel(20, name="c")]
    with TraceRecorder(path) as recorder:
        for model in models:
            with Engine(model) as engine:
                recorder.watch(engine)
                answered(engine, [1, 2])
    assert recorder.written == 2
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "Answers of c are not recorded" in record.getMessage()


def test_a_file_that_cannot_take_them_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="compressed"):
        TraceRecorder(tmp_path / "traces.jsonl.gz")
    (tmp_path / "notes.txt").write_text("mine\n")
    for bad in (tmp_path / "notes.txt", tmp_path, tmp_path / "none" / "traces.jsonl"):
        with Engine(FakeModel()) as engine, TraceRecorder(bad) as recorder, pytest.raises(ConfigError):
            recorder.watch(engine)
    assert (tmp_path / "notes.txt").read_text() == "mine\n"


def test_closing_twice_and_without_an_engine(path: Path) -> None:
    recorder = TraceRecorder(path)
    recorder.close()
    recorder.close()
    assert not path.exists()
