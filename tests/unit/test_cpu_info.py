"""Telling processors apart: by name and by what they can compute."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from foredraft.cpu_info import Processor, fields_of, first_processor, processor_of, this_processor

X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 7B13
flags\t\t: fpu sse sse4_2 avx2 fma f16c rdpid

processor\t: 1
model name\t: another
flags\t\t: avx512f
"""
ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd asimddp i8mm sve crc32
CPU implementer\t: 0x41
CPU variant\t: 0x1
CPU part\t: 0xd40
"""
RISCV = "processor\t: 0\nisa\t\t: rv64imafdcv\nuarch\t\t: sifive,u74\n"


@pytest.mark.parametrize(
    ("info", "found"),
    [
        (X86, Processor("AMD EPYC 7B13", "avx2 f16c fma")),
        (ARM, Processor("0x41 0xd40 0x1", "asimd asimddp i8mm sve")),
        ("model name\t: \n" + X86.split("\n", 3)[3], Processor("", "avx2 f16c fma")),
        (RISCV, Processor("sifive,u74", "rv64imafdcv")),
        ("", Processor("", "")),
        ("nonsense\n: :\n", Processor("", "")),
    ],
)
def test_the_first_processor_is_described(info: str, found: Processor) -> None:
    assert processor_of(fields_of(info)) == found


def test_flags_that_decide_no_speed_do_not_count() -> None:
    """A newer kernel shows more of them."""
    newer, other = X86.replace("rdpid", "rdpid smep flush_l1d"), X86.replace("avx2", "avx2 avx512f")
    assert processor_of(fields_of(newer)) == processor_of(fields_of(X86))
    assert processor_of(fields_of(other)) != processor_of(fields_of(X86))


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00model name: \xff\n"])
def test_it_never_fails(tmp_path: Path, content: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cpuinfo"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr("foredraft.cpu_info.CPU_INFO", path)
    found = this_processor.__wrapped__()
    assert found == Processor(platform.processor() or platform.machine(), "")


def test_only_the_first_of_many_processors_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(X86)
    monkeypatch.setattr("foredraft.cpu_info.CPU_INFO", path)
    assert first_processor() == fields_of(X86)
    assert this_processor.__wrapped__() == Processor("AMD EPYC 7B13", "avx2 f16c fma")


def test_this_machine_is_itself() -> None:
    assert this_processor() == this_processor.__wrapped__()
    assert this_processor().name
