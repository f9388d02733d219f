"""What is in use of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.server.console import machine
from foredraft.server.console.machine import MEBIBYTE, GpuUse, Machine, amd, nvidia_smi, nvml, of_smi


def test_processor_and_memory_are_within_their_bounds() -> None:
    use = Machine(()).read()
    assert 0 <= use.cpu <= 1
    assert 1 << 20 < use.memory < use.total
    assert use.gpu is None


def test_the_first_way_that_finds_a_gpu_is_used() -> None:
    gpu = GpuUse(0.5, 1, 2)
    ways = (lambda: None, lambda: lambda: None, lambda: lambda: gpu, lambda: pytest.fail("one was found"))
    assert Machine(ways).read().gpu == gpu


def test_lines_of_nvidia_smi() -> None:
    assert of_smi("35, 1024, 81559\n80, 512, 81559\n") == GpuUse(0.8, 1536 * MEBIBYTE, 163118 * MEBIBYTE)
    assert of_smi("[N/A], [N/A], [N/A]\n") is None
    assert of_smi("") is None


@pytest.mark.parametrize("says", ["echo 35, 1024, 2048", "exit 9", "echo nonsense, x, y"])
def test_nvidia_smi_is_asked_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    program, calls = tmp_path / "nvidia-smi", tmp_path / "calls"
    program.write_text(f"#!/bin/sh\necho x >> {calls}\n{says}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    read = nvidia_smi()
    assert read is not None
    expected = GpuUse(0.35, 1024 * MEBIBYTE, 2048 * MEBIBYTE) if "1024" in says else None
    assert [read(), read(), read()] == [expected] * 3
    assert calls.read_text() == "x\n"


def test_nvidia_smi_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(machine, "SMI_TIMEOUT_S", 0.1)
    read = nvidia_smi()
    assert read is not None
    assert read() is None


def test_without_a_driver_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_smi() is None
    assert amd(tmp_path) is None
    assert (nvml() or (lambda: None))() is None or nvml() is not None


def test_files_of_amd_s_driver(tmp_path: Path) -> None:
    for number, busy in enumerate((10, 90)):
        device = tmp_path / f"card{number}" / "device"
        device.mkdir(parents=True)
        (device / "gpu_busy_percent").write_text(f"{busy}\n")
        (device / "mem_info_vram_used").write_text("100\n")
        (device / "mem_info_vram_total").write_text("1000\n")
    read = amd(tmp_path)
    assert read is not None
    assert read() == GpuUse(0.9, 200, 2000)
    (tmp_path / "card0/device/mem_info_vram_used").unlink()
    assert read() is None
