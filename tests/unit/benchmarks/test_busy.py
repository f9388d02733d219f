"""The benchmark beside other processes: its figures, and that what it starts ends."""

from __future__ import annotations

import subprocess

import pytest

import busy


def test_figures_are_of_the_tokens_of_a_stretch() -> None:
    found = busy.figures([10.0] * 98 + [500.0, 520.0])
    assert found.rate == pytest.approx(100 / 2.0)
    assert found.p50 == 10.0
    assert 500.0 <= found.p99 <= 520.0
    assert busy.figures([250.0]) == busy.Figures(4.0, 250.0, 250.0)


def test_busy_processes_end_with_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def recorded(command: list[str]) -> subprocess.Popen[bytes]:
        started.append(start(command))
        return started[-1]

    def stopped() -> None:
        with busy.busy_processes(2, 20.0):
            assert [process.poll() for process in started] == [None, None]
            raise RuntimeError("stopped")

    monkeypatch.setattr(subprocess, "Popen", recorded)
    with pytest.raises(RuntimeError, match="stopped"):
        stopped()
    assert all(process.returncode is not None for process in started)
    assert len(started) == 2
