"""The context length that is chosen where none was asked for, with a stand-in for the memory that is free."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gguf_factory
from foredraft.backends import context_size, cpu
from foredraft.backends.context_size import SHARE, choose
from foredraft.backends.llamacpp import LlamaCppBackend
from foredraft.backends.llamacpp.context_memory import memory_for
from foredraft.config import DEFAULT_CONTEXT, ModelOptions, Rope
from foredraft.errors import CapacityError
from foredraft.library.mmproj import NONE, find_mmproj
from gguf_vision import qwen2vl

GB = 10**9
LONG = 100_000
FREE = 64 * GB


# --- the choice ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reach", "at_most", "memory", "length", "why"),
    [
        (2_048, LONG, 4 * GB, 2_048, "what the model takes"),
        (LONG, LONG, 400_000 * 100, 100_000, "what the model takes, which fits in memory"),
        (LONG, LONG, 400_000 * 100 - 1, 65_536, "what fits in 0.0 GB, 1 / 4 of the free memory"),
        (LONG, LONG, 40_000 * 4 * 100, 32_768, "the model takes 100,000"),
        (LONG, LONG, 0, DEFAULT_CONTEXT, "the model takes 100,000"),
        (LONG, LONG, None, DEFAULT_CONTEXT, "not known"),
        (LONG, 20_000, FREE, 20_000, "which fits"),
        (LONG, 4_096, FREE, 4_096, ""),
        (0, LONG, FREE, DEFAULT_CONTEXT, ""),
    ],
)
def test_the_longest_that_fits(reach: int, at_most: int, memory: int | None, length: int, why: str) -> None:
    found = choose(reach, at_most, 100.0, memory, share=SHARE)
    assert found.length == length
    assert why in found.why


def test_cells_that_take_nothing() -> None:
    """As those of a recurrent model."""
    assert choose(LONG, LONG, 0.0, GB, share=SHARE).length == LONG


def test_a_little_more_or_less_memory_changes_nothing() -> None:
    lengths = {choose(10**6, 10**6, 1e5, free, share=SHARE).length for free in range(20 * GB, 26 * GB, GB)}
    assert lengths == {32_768}


# --- free memory ---------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine with so much memory available, and files of control groups."""

    def be(available: int | None, **groups: dict[str, str]) -> None:
        meminfo = tmp_path / "meminfo"
        if available is not None:
            meminfo.write_text(f"MemTotal: 99999999 kB\nMemAvailable:   {available // 1024} kB\n")
        for folder, files in groups.items():
            place = tmp_path / "groups" / folder.replace("__", "/")
            place.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (place / name).write_text(f"{text}\n")
        (tmp_path / "membership").write_text("0::/machine/app\n5:memory:/old\n")
        monkeypatch.setattr(context_size, "_MEMINFO", meminfo)
        monkeypatch.setattr(cpu, "_GROUPS", tmp_path / "groups")
        monkeypatch.setattr(cpu, "_MEMBERSHIP", tmp_path / "membership")

    return be


def test_free_memory_is_what_is_available(machine: Callable[..., None]) -> None:
    machine(8 << 30)
    assert context_size.free_memory() == 8 << 30


@pytest.mark.parametrize(
    ("groups", "left"),
    [
        ({"machine__app": {"memory.max": "max"}, "machine": {"memory.max": "max"}}, 8 << 30),
        (
            {
                "machine__app": {"memory.max": "3000", "memory.current": "1000", "memory.stat": "anon 5"},
                "machine": {
                    "memory.max": "1500",
                    "memory.current": "1000",
                    "memory.stat": "inactive_file 100",
                },
            },
            600,
        ),
        (
            {
                "memory__old": {
                    "memory.limit_in_bytes": "900",
                    "memory.usage_in_bytes": "1000",
                    "memory.stat": "inactive_file 50",
                }
            },
            0,
        ),
    ],
)
def test_a_container_has_less(
    machine: Callable[..., None], groups: dict[str, dict[str, str]], left: int
) -> None:
    machine(8 << 30, **groups)
    assert context_size.free_memory() == left


def test_all_memory_is_that_of_the_machine_or_of_its_container(machine: Callable[..., None]) -> None:
    machine(1 << 30)
    assert context_size.all_memory() == 99999999 * 1024
    machine(1 << 30, machine__app={"memory.max": "max"}, machine={"memory.max": "5000"})
    assert context_size.all_memory() == 5000


# --- models --------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Loads a model where so much memory is free."""

    def load(path: Path, free: int | None, **options: Any) -> Any:
        monkeypatch.setattr(context_size, "free_memory", lambda: free)
        model = LlamaCppBackend().load(path, ModelOptions(probe=False, threads=1, memory="ram", **options))
        info = model.info
        model.close()
        return info

    return load


def cell_bytes(layers: int, heads: int, size: int, sequences: int) -> int:
    return 2 * 2 * layers * heads * size * sequences


def test_a_model_gets_what_fits(tmp_path: Path, loaded: Callable[..., Any]) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "m.gguf", ctx_train=LONG)
    whole = loaded(path, FREE)
    assert (whole.context_length, whole.trained_context) == (LONG, LONG)
    assert "fits in memory" in whole.context_chosen
    cells = cell_bytes(layers=2, heads=2, size=16, sequences=2)
    some = loaded(path, SHARE * 2 * cells * 35_000, sequences=2)  # the buffers take about as much again
    assert some.context_length in (16_384, 32_768)
    assert "the model takes 100,000" in some.context_chosen
    assert loaded(path, 0).context_length == loaded(path, None).context_length == DEFAULT_CONTEXT


def test_more_sequences_get_less_each(tmp_path: Path, loaded: Callable[..., Any]) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "m.gguf", ctx_train=1_000_000)
    free = SHARE * 400 * 70_000
    one, eight = (loaded(path, free, sequences=count, ubatch=16).context_length for count in (1, 8))
    assert one > eight >= DEFAULT_CONTEXT


def test_a_budget_bounds_it(tmp_path: Path, loaded: Callable[..., Any]) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "m.gguf", ctx_train=LONG)
    assert loaded(path, FREE, memory_budget=path.stat().st_size).context_length == DEFAULT_CONTEXT
    assert loaded(path, FREE, memory_budget=FREE).context_length == LONG


def test_what_is_asked_for_counts(tmp_path: Path, loaded: Callable[..., Any]) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "m.gguf", ctx_train=LONG)
    asked = loaded(path, 0, context_length=20_000)
    assert (asked.context_length, asked.context_chosen) == (20_000, "")
    drafting = loaded(path, FREE, context_at_most=10_000)
    assert drafting.context_length == 10_000


def test_scaled_positions_reach_further(tmp_path: Path, loaded: Callable[..., Any]) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "m.gguf", ctx_train=8_192)
    info = loaded(path, FREE, rope=Rope(scaling="yarn", scale=4.0))
    assert (info.context_length, info.trained_context) == (32_768, 32_768)


def test_a_context_that_no_memory_could_hold_is_refused(
    tmp_path: Path, loaded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "m.gguf", ctx_train=512)
    monkeypatch.setattr(context_size, "all_memory", lambda: path.stat().st_size + (64 << 20))
    asked = Rope(freq_base=1e6)
    with pytest.raises(CapacityError, match="2,000,000,000 tokens for each of 2 sequences takes") as error:
        loaded(path, 0, context_length=2_000_000_000, sequences=2, rope=asked)
    found = re.search(r"at most ([\d,]+) tokens", error.value.hint or "")
    assert found
    longest = int(found[1].replace(",", ""))
    assert loaded(path, 0, context_length=longest, sequences=2, rope=asked).context_length == longest
    with pytest.raises(CapacityError, match="in all"):
        loaded(path, 0, context_length=longest + 1000, sequences=2, rope=asked)


def test_what_the_model_sees_with_is_not_there_for_the_context(
    tmp_path: Path, loaded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = qwen2vl(tmp_path / "m")
    mmproj = find_mmproj(path)
    assert mmproj is not None
    sees, blind = loaded(path, FREE), loaded(path, FREE, mmproj=NONE)
    vision = sees.memory["vision"]
    assert vision > mmproj.stat().st_size + (1 << 20)  # the buffer for an image of some size
    assert "vision" not in blind.memory
    assert sees.held_bytes - vision == blind.held_bytes == blind.size_bytes

    monkeypatch.setattr(context_size, "all_memory", lambda: blind.size_bytes + (64 << 20))
    tokens = {}
    for file in (None, NONE):
        with pytest.raises(CapacityError) as error:
            loaded(path, 0, context_length=2_000_000_000, rope=Rope(freq_base=1e6), mmproj=file)
        found = re.search(r"at most ([\d,]+) tokens", error.value.hint or "")
        assert found
        tokens[file] = int(found[1].replace(",", ""))
    per_token = (64 << 20) / tokens[NONE]
    assert (tokens[NONE] - tokens[None]) * per_token == pytest.approx(vision, rel=0.01)


def test_memory_that_a_model_has_and_did_not_touch_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_size, "free_memory", lambda: 1000)
    assert memory_for("cpu", untouched=300, budget=None, held=500) == (700, SHARE)
    assert memory_for("cpu", untouched=300, budget=900, held=500) == (400, SHARE)
    assert memory_for("cpu", untouched=300, budget=400, held=500) == (0, SHARE)
