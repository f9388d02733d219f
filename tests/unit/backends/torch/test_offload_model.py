"""Models larger than their device: the same bits as when everything stays, and words where that fails.

The device is a processor that claims to have little memory; the copies are real.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_factory
from foredraft import Engine, SamplingParams
from foredraft.backends.probe import Verdict
from foredraft.backends.torch import offload, offload_cpu
from foredraft.backends.torch.loading import load_model
from foredraft.backends.torch.model import TorchModel
from foredraft.backends.torch.offload_budget import Needs, choose_streamed
from foredraft.backends.torch.offload_cpu import CpuDevice, ThreadCopier
from foredraft.config import ModelOptions
from foredraft.errors import BackendError, CapacityError
from foredraft.testing import ScriptedDrafter, assert_lossless
from foredraft.types import Draft, Rows
from model_cases import text_tokens
from torch_cases import reference

Make = Callable[..., Path]
LAYERS = 7
EVERYTHING = 10**9
PROMPT = text_tokens(40)


def load(path: Path, memory: int = EVERYTHING, gpu_layers: int = -1, **options: Any) -> TorchModel:
    chosen = {"threads": 1, "probe": False, "context_length": 256, "batch": 64, **options}
    return load_model(path, ModelOptions(gpu_layers=gpu_layers, **chosen), CpuDevice(memory))


@pytest.fixture
def deep(folder: Make) -> Path:
    return folder("llama", num_hidden_layers=LAYERS)


def all_logits(model: TorchModel) -> Any:
    """Of a prompt in parts, a tree, the path that is kept of it, and two sequences at once."""
    found = [model.forward([Rows(0, 0, PROMPT[:17], 17)]).copy()]
    found.append(model.forward([Rows(0, 17, PROMPT[17:18], 1)]).copy())
    found.append(model.forward([Rows(0, 18, PROMPT[18:22], 4, (-1, 0, 0, 1))]).copy())
    model.keep_path(0, 18, [0, 2])
    model.fork(0, 1, 20)
    found.append(model.forward([Rows(0, 20, PROMPT[22:25], 3), Rows(1, 20, PROMPT[30:], 2)]).copy())
    return np.concatenate(found)


# --- what is computed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", torch_factory.LEAN)
def test_a_streamed_prompt_gives_transformers_logits_bit_for_bit(folder: Make, architecture: str) -> None:
    path = folder(architecture, num_hidden_layers=5)
    with torch.inference_mode():
        expected = reference(path, "eager")(torch.tensor([PROMPT])).logits[0].numpy()
    model = load(path, gpu_layers=1)
    assert model.info.settings["gpu_layers"] == "1 of 5"
    assert np.array_equal(model.forward([Rows(0, 0, PROMPT, len(PROMPT))]), expected)


@pytest.mark.parametrize("resident", range(1, LAYERS))
def test_streamed_layers_give_the_same_bits(deep: Path, resident: int) -> None:
    whole, streamed = load(deep, sequences=2), load(deep, gpu_layers=resident, sequences=2)
    assert whole.info.settings["gpu_layers"] == "7 of 7"
    assert "streamed" not in whole.info.settings
    assert streamed.info.settings["gpu_layers"] == f"{resident} of 7"
    assert np.array_equal(all_logits(streamed), all_logits(whole))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("smollm3", {"num_hidden_layers": 8}),
    ],
)
def test_every_lean_architecture_is_streamed(
    folder: Make, architecture: str, changes: dict[str, Any], dtype: str
) -> None:
    assert {"llama", "mistral", "qwen2", "qwen3", "smollm3"} == set(torch_factory.LEAN)
    path = folder(architecture, **{"num_hidden_layers": 5, **changes})
    whole = load(path, sequences=2, dtype=dtype)
    streamed = load(path, gpu_layers=1, sequences=2, dtype=dtype)
    assert "streamed" in streamed.info.settings
    assert np.array_equal(all_logits(streamed), all_logits(whole))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_drafts_leave_the_tokens_as_they_are(deep: Path, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=30, ignore_eos=True)
    prompts = [PROMPT[:9], [30, 31, 32] * 5]
    with Engine(load(deep, gpu_layers=2)) as engine:
        texts = [[*prompt, *engine.generate(prompt, params).tokens] for prompt in prompts]

    def script(tokens: Any) -> Draft | None:
        for text in texts:
            if text[: len(tokens)] == list(tokens) and len(text) > len(tokens) + 4:
                return Draft((*text[len(tokens) : len(tokens) + 3], 7), "scripted")
        return None

    drafters = [ScriptedDrafter(script)]
    accepted = assert_lossless(lambda: load(deep, gpu_layers=2), lambda model: drafters, prompts, params)
    assert accepted["scripted"] > 20


def test_a_snapshot_of_one_fits_the_other(deep: Path) -> None:
    whole, streamed = load(deep, cache_dir=None), load(deep, gpu_layers=2)
    assert whole.capabilities.snapshot_key == streamed.capabilities.snapshot_key
    whole.forward([Rows(0, 0, PROMPT[:20], 1)])
    streamed.restore(0, whole.snapshot(0))
    last = [Rows(0, 20, PROMPT[20:25], 5)]
    assert np.array_equal(streamed.forward(last), whole.forward(last))


def test_exactness_is_what_was_measured_of_the_whole_model(
    deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not measured where each forward copies most of the model."""
    lines: list[str] = []
    options: dict[str, Any] = {"probe": True, "cache_dir": tmp_path, "notice": lines.append}
    unknown = load(deep, gpu_layers=2, **options).capabilities
    assert (unknown.batch_invariant, unknown.max_rows) == (False, 63)
    assert unknown.invariance_note.startswith("not measured: too slow with streamed layers")
    assert len(lines) == 1
    assert "set by --gpu-layers 2" in lines[0]
    with monkeypatch.context() as patch:
        patch.setattr(
            "foredraft.backends.torch.loading.measure", lambda *_, **__: Verdict(33, "seen", cut=True)
        )
        whole = load(deep, **options).capabilities
    streamed = load(deep, gpu_layers=2, **options).capabilities
    for able in (whole, streamed):
        assert (able.batch_invariant, able.max_rows, able.invariance_note) == (True, 33, "seen")


# --- what is chosen ------------------------------------------------------------------------------------


def needed(path: Path, monkeypatch: pytest.MonkeyPatch) -> Needs:
    """What the model needs, as the budget sees it."""
    seen: list[Needs] = []

    def spy(needs: Needs, *rest: Any) -> frozenset[int]:
        seen.append(needs)
        return choose_streamed(needs, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(offload, "choose_streamed", spy)
        load(path).close()
    return seen[0]


def test_needs_are_the_bytes_that_tensors_have(deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = needed(deep, monkeypatch)
    size, heads, hidden, mlp = 16, 4, 64, 96
    weights = hidden * size * heads * 2 + hidden * size * 2 * 2 + 3 * hidden * mlp + 2 * hidden
    assert len(needs.layers) == LAYERS
    assert all(4 * weights <= layer < 4 * weights + 6 * offload.ALIGNED for layer in needs.layers)
    assert needs.cache == LAYERS * 2 * (2 * 384 * size) * 4, "256 tokens are two blocks of 192 cells"
    ends = 4 * (torch_factory.VOCAB * hidden + hidden)
    assert ends < needs.ends <= ends + 200, "embeddings and head are one tensor; rotary frequencies are few"


@pytest.mark.parametrize("missing", [0, 1])
def test_what_stays_is_what_fits(deep: Path, missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = needed(deep, monkeypatch)
    lines: list[str] = []
    model = load(deep, needs.with_streamed(frozenset()) - missing, notice=lines.append)
    settings = model.info.settings
    assert settings["gpu_layers"] == ("4 of 7" if missing else "7 of 7")
    assert ("streamed" in settings) == bool(missing)
    if missing:
        assert settings["streamed"].startswith("3 layers from CPU memory, 2 buffers of 0.12")
        assert "3 of 7 layers are streamed from CPU memory, because" in lines[0]
    else:
        assert lines == []


def test_a_named_number_is_said_to_be_asked_for(deep: Path) -> None:
    lines: list[str] = []
    load(deep, gpu_layers=3, notice=lines.append)
    assert lines == [f"{deep.name}: 4 of 7 layers are streamed from CPU memory, set by --gpu-layers 3."]


def test_no_layers_is_the_processor(deep: Path) -> None:
    settings = load(deep, memory=0, gpu_layers=0).info.settings
    assert settings["products"] == "packed"
    assert not {"gpu_layers", "streamed"} & set(settings)


def test_a_device_too_small_for_two_layers_is_a_lack_of_room(deep: Path) -> None:
    with pytest.raises(CapacityError, match="even with every layer streamed") as caught:
        load(deep, memory=1000)
    assert deep.name in caught.value.message
    assert "--ctx" in (caught.value.hint or "")


def test_models_that_are_not_streamed_stay_whole(folder: Make) -> None:
    """On the device, whatever it claims: only the lean forward knows its layers one by one."""
    model = load(folder("gpt2"), memory=0)
    assert model.info.settings["forward"] == "transformers"
    assert "streamed" not in model.info.settings


def test_a_machine_without_a_gpu_has_no_accelerator() -> None:
    assert offload.find_accelerator(torch.device("cpu")) is None
    assert offload.find_accelerator(torch.device("mps")) is None


# --- what can go wrong later ---------------------------------------------------------------------------


class Watched(ThreadCopier):
    """Remembers what was asked of it."""

    made: list[Watched]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.calls: list[str] = []
        self.made.append(self)

    def settle(self) -> None:
        super().settle()
        self.calls.append("settle")

    def close(self) -> None:
        super().close()
        self.calls.append("close")


@pytest.fixture
def copiers(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """Those of the models loaded from now on."""
    Watched.made = []
    monkeypatch.setattr(offload_cpu, "ThreadCopier", Watched)
    return Watched.made


def test_out_of_memory_in_a_forward_leaves_nothing_under_way_and_the_model_usable(
    deep: Path, copiers: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, model = load(deep), load(deep, gpu_layers=2)
    rows = [Rows(0, 0, PROMPT, 3)]
    silu, calls = torch.nn.functional.silu, []

    def no_memory(gate: Any) -> Any:
        calls.append(gate)
        if len(calls) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand much more")
        return silu(gate)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "silu", no_memory)
        with pytest.raises(CapacityError, match="forward of 40 rows") as caught:
            model.forward(rows)
    assert "--gpu-layers" in (caught.value.hint or "")
    assert copiers[0].calls == ["settle"]
    assert model.length(0) == 0
    assert np.array_equal(model.forward(rows), whole.forward(rows))


def test_closing_ends_the_copying(deep: Path, copiers: list[Watched]) -> None:
    model = load(deep, gpu_layers=2)
    model.forward([Rows(0, 0, PROMPT, 1)])
    model.close()
    assert copiers[0].calls == ["close"]
    assert copiers[0].buffers == []
    with pytest.raises(BackendError, match="closed"):
        model.forward([Rows(0, 0, PROMPT, 1)])


@pytest.mark.parametrize("place", ["_packed", "LeanForward"])
def test_a_failure_while_loading_frees_the_buffers(
    deep: Path, copiers: list[Watched], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nand much more")

    monkeypatch.setattr(offload, place, no_memory)
    with pytest.raises((CapacityError, RuntimeError), match="can't allocate memory"):
        load(deep, gpu_layers=2)
    assert copiers[0].calls == ["close"]


def test_memory_that_is_gone_when_it_is_needed_is_an_error_in_words(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory\nand much more")

    monkeypatch.setattr(offload, "_placed", no_memory)
    with pytest.raises(CapacityError, match=r"though 1\.00 GB were free on the device") as caught:
        load(deep)
    assert "fewer --gpu-layers" in (caught.value.hint or "")
