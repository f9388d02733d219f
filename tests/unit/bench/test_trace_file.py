"""A trace file that grows: private, whole at any time, bounded."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from foredraft.bench.trace import Trace, TraceSet, read_traces, trace_line, write_traces
from foredraft.bench.trace_file import TraceFile
from foredraft.errors import ConfigError

HEADER = TraceSet("tiny", 20, "abc", (19,))
TRACES = [Trace(str(n), "serve", (1, 2, n), (3, 4)) for n in range(5)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traces.jsonl"


def grown(path: Path, traces: list[Trace] = TRACES) -> Path:
    with TraceFile(path, HEADER) as file:
        assert all(file.append(trace) for trace in traces)
    return path


def test_what_is_added_is_read(path: Path) -> None:
    assert list(read_traces(grown(path)).traces) == TRACES
    assert list(read_traces(grown(path, TRACES[:1])).traces) == [*TRACES, TRACES[0]]


def test_it_is_the_file_that_is_written_at_once(path: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    write_traces(whole, replace(HEADER, traces=TRACES))
    assert grown(path).read_bytes() == whole.read_bytes()


def test_it_can_be_read_while_it_grows(path: Path) -> None:
    with TraceFile(path, HEADER) as file:
        assert list(read_traces(path).traces) == []
        for count, trace in enumerate(TRACES, 1):
            file.append(trace)
            assert len(read_traces(path).traces) == count


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
def test_only_the_user_can_read_it(path: Path) -> None:
    assert stat.S_IMODE(grown(path).stat().st_mode) == 0o600
    path.chmod(0o644)
    assert stat.S_IMODE(grown(path).stat().st_mode) == 0o600


def test_a_file_cut_anywhere_in_its_last_line_is_read_and_continued(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = grown(path).read_bytes()
    last = len(trace_line(TRACES[-1]))
    for cut in range(2, last):
        path.write_bytes(whole[:-cut])
        caplog.clear()
        assert list(read_traces(path).traces) == TRACES[:-1]
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "cut short" in caplog.text
        assert list(read_traces(grown(path, TRACES[:1])).traces) == [*TRACES[:-1], TRACES[0]]


def test_a_damaged_line_in_the_middle_is_no_crash(path: Path) -> None:
    lines = grown(path).read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2][:10] + b"\n", *lines[3:]]))
    with pytest.raises(ConfigError, match="line 3"):
        read_traces(path)


@pytest.mark.parametrize("content", [b"my diary", b"my diary\n", b"\x1f\x8b\x08\n", b"[1]\n", b"{}\n{}\n"])
def test_a_file_of_another_kind_is_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        TraceFile(path, HEADER)
    assert path.read_bytes() == content


def test_other_tokens(path: Path) -> None:
    before = grown(path).read_bytes()
    with pytest.raises(ConfigError, match="has other tokens than large") as caught:
        TraceFile(path, replace(HEADER, model="large", vocab_hash="other"))
    assert "another file" in (caught.value.hint or "")
    assert path.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_hang(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="is not a file"):
        TraceFile(path, HEADER)


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        TraceFile(tmp_path, HEADER)


def test_it_is_bounded(path: Path) -> None:
    most = len(grown(path, TRACES[:2]).read_bytes()) + 10
    with TraceFile(path, HEADER, most_bytes=most) as file:
        assert not file.append(TRACES[2])
        assert not file.append(TRACES[3])
    assert len(read_traces(path).traces) == 2


def test_what_a_full_disk_took_of_a_line_is_taken_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grown(path, TRACES[:1])
    real = os.write
    with TraceFile(path, HEADER) as file:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, line: real(fd, line[:7]))
            with pytest.raises(OSError, match="only 7"):
                file.append(TRACES[1])
        assert list(read_traces(path).traces) == TRACES[:1]
        assert file.append(TRACES[2])
    assert list(read_traces(path).traces) == [TRACES[0], TRACES[2]]
