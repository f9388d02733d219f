"""`foredraft bench --record` and `--replay`, stopped midway: what was finished is kept and reported."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import Command, Ran
from foredraft.bench.record import as_trace, trace_set
from foredraft.bench.replay import replay as replay_all
from foredraft.bench.trace import Trace, TraceSet, read_traces, write_traces

RECORD, REPLAY = "foredraft.cli.bench_record", "foredraft.cli.bench_replay"
STOPS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def signalled(original: Callable[..., Any], call: int, number: signal.Signals) -> Callable[..., Any]:
    """A function that is stopped by a signal when it is called for the `call`-th time, before it returns."""
    calls = 0

    def stopping(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        assert calls <= call, "it went on"
        made = original(*arguments, **options)
        if calls == call:
            signal.raise_signal(number)
        return made

    return stopping


# --- recording -----------------------------------------------------------------------------------------


def record(foredraft: Command, tiny: Path, path: Path) -> Ran:
    return foredraft("bench", tiny, "--record", path, "--limit", 3, "-n", 6, "-t", 1)


@pytest.mark.parametrize(("number", "code"), STOPS)
def test_answers_that_were_recorded_are_kept_and_counted(
    foredraft: Command,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    code: int,
) -> None:
    monkeypatch.setattr(f"{RECORD}.as_trace", signalled(as_trace, 3, number))
    path = tmp_path / "out.jsonl"
    ran = record(foredraft, tiny, path)
    assert ran.code == code
    assert ran.err.splitlines()[-2:] == [f"Wrote 2 answers of 3 to {path}", "Stopped."]
    assert len(read_traces(path).traces) == 2


def test_stopped_while_it_writes_it_writes_all(
    foredraft: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{RECORD}.trace_set", signalled(trace_set, 1, signal.SIGINT))
    path = tmp_path / "out.jsonl"
    ran = record(foredraft, tiny, path)
    assert ran.code == 130
    assert ran.err.splitlines()[-2:] == [f"Wrote 3 answers to {path}", "Stopped."]
    assert len(read_traces(path).traces) == 3


def test_stopped_before_the_first_answer_nothing_is_written(
    foredraft: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{RECORD}.as_trace", signalled(as_trace, 1, signal.SIGTERM))
    path = tmp_path / "out.jsonl"
    ran = record(foredraft, tiny, path)
    assert ran.code == 143
    assert ran.err.splitlines() == ["Stopped."]
    assert not path.exists()


def test_an_error_keeps_what_came_before_it(
    foredraft: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces: list[Trace] = []

    def failing(*arguments: Any, **options: Any) -> Trace:
        traces.append(as_trace(*arguments, **options))
        if len(traces) == 3:
            raise OSError("no more")
        return traces[-1]

    monkeypatch.setattr(f"{RECORD}.as_trace", failing)
    path = tmp_path / "out.jsonl"
    assert record(foredraft, tiny, path).code == 1
    assert len(read_traces(path).traces) == 2


# --- replaying -----------------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "traces.jsonl"
    passage = tuple(range(3, 40))
    write_traces(path, TraceSet("tiny", 64, "h", (), [Trace("copy", "edit", passage, passage)]))
    return path


def replay(foredraft: Command, recorded: Path, *arguments: object) -> Ran:
    curves = [word for name in ("flat", "steep", "gpu", "moe") for word in ("--curve", name)]
    return foredraft("bench", "--replay", recorded, *curves, *arguments)


@pytest.mark.parametrize(("number", "code"), STOPS)
def test_replays_that_were_finished_are_reported(
    foredraft: Command,
    recorded: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    code: int,
) -> None:
    monkeypatch.setattr(f"{REPLAY}.replay", signalled(replay_all, 3, number))
    file = recorded.with_suffix(".json")
    ran = replay(foredraft, recorded, "--json", file)
    assert ran.code == code
    assert "Replay (incomplete)" in ran.out
    assert "Note: stopped after 2 replays of 4: the report covers only these" in ran.out
    assert ran.err.splitlines()[-1] == "Stopped."
    value = json.loads(file.read_text())
    assert value["complete"] is False
    assert value["settings"] == ["auto on flat", "auto on steep"]


def test_stopped_in_the_first_replay_there_is_nothing_to_report(
    foredraft: Command, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{REPLAY}.replay", signalled(replay_all, 1, signal.SIGTERM))
    ran = replay(foredraft, recorded)
    assert (ran.code, ran.out, ran.err.strip()) == (143, "", "Stopped.")


def test_a_replay_to_the_end_is_complete(foredraft: Command, recorded: Path) -> None:
    ran = replay(foredraft, recorded, "--json", "-")
    value = json.loads(ran.out)
    assert (ran.code, value["complete"], value["title"]) == (0, True, "Replay")
    assert len(value["settings"]) == 4
