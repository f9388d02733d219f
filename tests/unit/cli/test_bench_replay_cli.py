"""`foredraft bench --replay` and the recording of traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Command
from foredraft.bench.trace import Trace, TraceSet, read_traces, write_traces

PASSAGE = tuple(range(3, 40))


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "traces.jsonl"
    traces = [Trace("copy", "edit", PASSAGE, PASSAGE), Trace("other", "chat", (1, 2), tuple(range(40, 60)))]
    write_traces(path, TraceSet("tiny", 64, "h", (), traces))
    return path


def test_a_replay_reports_speedups_and_attempts(foredraft: Command, recorded: Path) -> None:
    ran = foredraft("bench", "--replay", recorded, "--curve", "flat", "--json", "-")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert {score["prompt"] for score in report["prompts"]} == {"copy", "other"}
    assert report["facts"]["auto on flat"]["attempts"].endswith("% of the time")
    table = foredraft("bench", "--replay", recorded, "--curve", "gpu")
    assert table.code == 0, table.err
    assert "auto on gpu" in table.out
    assert "worst prompt" in table.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--replay", "none.jsonl"), "There is no trace file none.jsonl"),
        (("--replay", "shipped", "--curve", "stepe"), "no cost curve 'stepe'"),
        (("--replay", "shipped", "--speculate", "suffix"), "--speculate has no effect"),
        (("model.gguf", "--replay", "shipped"), "does not use a model"),
        (("--curve", "steep"), "--curve needs --replay"),
        (("--record", "x.jsonl", "--speculate", "suffix"), "--speculate has no effect"),
    ],
)
def test_what_is_asked_wrongly(foredraft: Command, arguments: tuple[str, ...], says: str) -> None:
    ran = foredraft("bench", *arguments)
    assert ran.code == 2, ran.out
    assert says in ran.err
    assert "Traceback" not in ran.err


def test_answers_are_recorded_and_can_be_replayed(foredraft: Command, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    ran = foredraft("bench", tiny, "--record", path, "--limit", 2, "-n", 12, "-t", 1)
    assert ran.code == 0, ran.err
    assert "Wrote 2 answers" in ran.err
    ran = foredraft("run", "-m", tiny, "Hello there", "--raw", "-n", 12, "-t", 1, "--record", path, "--json")
    assert ran.code == 0, ran.err
    assert "logprobs" not in json.loads(ran.out)
    traces = read_traces(path).traces
    assert [trace.category for trace in traces][-1] == "run"
    assert len(traces) == 3
    assert all(0 < len(trace.output) <= 12 for trace in traces)
    replayed = foredraft("bench", "--replay", path, "--curve", "steep")
    assert replayed.code == 0, replayed.err
