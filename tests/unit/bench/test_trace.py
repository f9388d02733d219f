"""Trace files: what is written is read again, and what is not one is said to be so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from foredraft.bench.record import append_traces, as_trace, trace_set
from foredraft.bench.trace import Trace, TraceSet, read_traces, write_traces
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.testing import FakeModel
from foredraft.types import SamplingParams

TRACES = TraceSet(
    "tiny",
    20,
    "abc",
    (19,),
    [
        Trace("a", "code", (1, 2, 3), (4, 5), (4, 5)),
        Trace("b", "", (3,), (1, 1, 19)),
    ],
)


@pytest.mark.parametrize("name", ["traces.jsonl", "traces.jsonl.gz"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_traces(path, TRACES)
    first = path.read_bytes()
    assert read_traces(path) == TRACES
    write_traces(path, read_traces(path))
    assert path.read_bytes() == first, "the same traces are the same bytes"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("[1]", "line 1: a JSON object is expected"),
        ('{"format": "other"}', "is not a trace file"),
        ('{"format": "foredraft-traces", "version": 9}', "version 9"),
        ('{"format": "foredraft-traces", "version": 1}', "header lacks 'vocab_size'"),
    ],
)
def test_a_file_that_is_no_trace_file(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        read_traces(path)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"id": "a", "prompt": [1]}, "line 4: 'output' is missing"),
        ({"id": "a", "prompt": [1], "output": [20]}, "line 4: 'output' is not a list of token ids below 20"),
        ({"id": "a", "prompt": "text", "output": []}, "line 4: 'prompt' is not a list"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: dict[str, object], says: str) -> None:
    path = tmp_path / "traces.jsonl"
    write_traces(path, TRACES)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=says):
        read_traces(path)


def test_a_missing_and_a_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no trace file"):
        read_traces(tmp_path / "none.jsonl")
    path = tmp_path / "cut.jsonl.gz"
    write_traces(path, TRACES)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_traces(path)


def test_fields_that_are_no_longer_written_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    write_traces(path, replace(TRACES, traces=[]))
    row = {"id": "b", "prompt": [3], "output": [1, 1, 19], "successors": [[1, 4], [1], [19, 2]]}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    assert read_traces(path).traces == TRACES.traces[1:]


def test_a_completion_becomes_a_trace() -> None:
    with Engine(FakeModel()) as engine:
        completion = engine.generate([5, 6], SamplingParams(max_tokens=12, ignore_eos=True))
        trace = as_trace([5, 6], completion, name="x", category="fake", prediction=[7])
        assert trace == Trace("x", "fake", (5, 6), completion.tokens, (7,))
        made = trace_set(engine, [trace])
        assert made.vocab_size == engine.model.info.vocab_size


def test_traces_are_added_to_those_of_the_same_tokens_only(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    append_traces(path, TRACES)
    append_traces(path, TRACES)
    assert len(read_traces(path).traces) == 4
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="other tokens"):
        append_traces(path, replace(TRACES, vocab_hash="other"))
    assert path.read_bytes() == before
