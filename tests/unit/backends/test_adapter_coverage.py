"""Adapters of which llama.cpp would leave out matrices are refused: models of several architectures."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import gguf_adapters
import gguf_converted_heads
import gguf_factory
import gguf_hybrids
import gguf_windows
import torch_heads
from foredraft.backends.llamacpp import BACKEND, trial, trial_run
from foredraft.backends.llamacpp.adapter_file import check_fits, read_adapter
from foredraft.backends.llamacpp.features import next_layers
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.backends.llamacpp.loading import open_weights
from foredraft.config import Adapter, ModelOptions
from foredraft.errors import UnsupportedModelError
from foredraft.library.adapter_files import adapters_of
from foredraft.protocols import Model
from foredraft.types import Logits, Rows

LATENT = r"blk\.\d+\.attn_(k|v)_b\.weight"
"""What DeepSeek's attention multiplies with by itself."""


def deepseek(path: Path) -> Path:
    folder = torch_heads.make_mtp(path.with_suffix(""), "deepseek_v3")
    return gguf_converted_heads.deepseek_of(path, folder)


MODELS: dict[str, Callable[[Path], Path]] = {
    "llama": gguf_factory.tiny_llama,
    "gemma3": gguf_windows.tiny_gemma3,
    "lfm2": gguf_hybrids.tiny_lfm2,
    "qwen35": gguf_hybrids.tiny_qwen35,
    "deepseek2": deepseek,
}


def options(adapters: tuple[Adapter, ...], cache: Path | None = None) -> ModelOptions:
    return ModelOptions(
        threads=1, gpu_layers=0, probe=False, context_length=64, cache_dir=cache, adapters=adapters
    )


def load(base: Path, adapter: Path, cache: Path | None = None) -> None:
    BACKEND.load(base, options(adapters_of({"it": [str(adapter)]}), cache)).close()


def logits(model: Model, adapter: str = "") -> Logits:
    model.release(0)
    model.adapt(0, adapter)
    return model.forward([Rows(0, 0, [20, 30, 40], 3)]).copy()


def fitting(base: Path) -> list[str]:
    """The matrices that an adapter may change by its header."""
    found = []
    for tensor in gguf.GGUFReader(base).tensors:
        if len(tensor.shape) < 2:
            continue
        path = base.with_name("one.gguf")
        gguf_adapters.lora(path, base, targets=tensor.name.replace(".", r"\."))
        try:
            check_fits(read_adapter(path), read_gguf(base))
        except UnsupportedModelError:
            continue
        found.append(tensor.name)
    return found


@pytest.fixture(scope="module", params=MODELS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MODELS[request.param](tmp_path_factory.mktemp(request.param) / "base.gguf")


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deepseek(tmp_path_factory.mktemp("latent") / "base.gguf")


def adapter_of(path: Path, base: Path, names: list[str]) -> Path:
    targets = "|".join(name.replace(".", r"\.") for name in names)
    adapter = gguf_adapters.lora(path, base, targets=targets, strength=0.1)
    assert len(read_adapter(adapter).pairs) == len(names)
    return adapter


def test_what_is_left_out_changes_no_logit(base: Path, tmp_path: Path) -> None:
    """Each matrix by an adapter of its own: those that the nodes tell of, and no others."""
    summary = read_gguf(base)
    drafting = f"blk.{summary.block_count - next_layers(summary)}."  # which is only loaded for a head
    names = [name for name in fitting(base) if not name.startswith(drafting)]
    files = {name: [str(adapter_of(tmp_path / f"{name}.gguf", base, [name]))] for name in names}
    model = open_weights(base, options(adapters_of(files)), as_they_lie=True)
    try:
        expected = [name for name in names if np.array_equal(logits(model, name), logits(model))]
    finally:
        model.close()
    whole = adapter_of(tmp_path / "whole.gguf", base, names)
    assert trial_run._left_out(base, whole, options(adapters_of({"it": [str(whole)]}))) == expected
    if summary.architecture == "deepseek2":
        assert {"blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight"} <= {*expected}
    load(base, adapter_of(tmp_path / "used.gguf", base, [name for name in names if name not in expected]))


def test_what_latent_attention_multiplies_with_is_refused(latent: Path, tmp_path: Path) -> None:
    names = [name for name in fitting(latent) if re.fullmatch(LATENT, name) and name.startswith("blk.0")]
    adapter = adapter_of(tmp_path / "it.gguf", latent, ["blk.0.attn_output.weight", *names])
    with pytest.raises(UnsupportedModelError) as caught:
        load(latent, adapter)
    assert sorted(names) == ["blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight"]
    for name in names:
        assert name in caught.value.message
    assert "attn_output" not in caught.value.message
    assert "Merge" in (caught.value.hint or "")


def test_it_is_remembered(latent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the process, and from run to run."""
    adapter = adapter_of(tmp_path / "it.gguf", latent, ["blk.0.attn_k_b.weight"])
    tried: list[str] = []
    call = trial._call

    def counted(function: str, *given: Any) -> Any:
        tried.append(function)
        return call(function, *given)

    monkeypatch.setattr(trial, "_call", counted)
    for _ in range(2):
        trial._known.clear()
        for _ in range(2):
            with pytest.raises(UnsupportedModelError, match="attn_k_b"):
                load(latent, adapter, tmp_path / "cache")
    assert tried.count(trial._ADAPTER_FUNCTION) == 1


def test_many_are_counted(latent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuple(f"blk.{number}.attn_k_b.weight" for number in range(5))
    adapter = adapter_of(tmp_path / "it.gguf", latent, ["blk.0.attn_k_b.weight"])
    monkeypatch.setattr(trial, "_kept", lambda *_: trial._Fault("", left_out=found))
    with pytest.raises(UnsupportedModelError, match=r"blk\.2\.attn_k_b\.weight and 2 more\."):
        load(latent, adapter)


def test_what_no_forward_multiplies_with_is_not_left_out(tmp_path: Path) -> None:
    """Layers that use keys and values of earlier ones: PEFT gives their own matrices an adapter, too."""
    base = gguf_windows.tiny_gemma4(tmp_path / "base.gguf", layers=4, shared=2)
    names = fitting(base)
    unused = {f"blk.{layer}.attn_{of}.weight" for layer in (2, 3) for of in "kv"}
    assert unused <= {*names}
    whole = adapter_of(tmp_path / "whole.gguf", base, names)
    files = {"it": [str(whole)], "unused": [str(adapter_of(tmp_path / "u.gguf", base, sorted(unused)))]}
    model = BACKEND.load(base, options(adapters_of(files)))
    try:
        assert np.array_equal(logits(model, "unused"), logits(model))
        assert not np.array_equal(logits(model, "it"), logits(model))
    finally:
        model.close()


def test_at_a_scale_of_0_an_adapter_is_loaded(tmp_path: Path) -> None:
    """llama.cpp then reads none of its matrices."""
    base = gguf_factory.tiny_llama(tmp_path / "base.gguf")
    adapter = gguf_adapters.lora(tmp_path / "it.gguf", base)
    model = BACKEND.load(base, options(adapters_of({"it": [f"{adapter}:0"]})))
    try:
        assert np.array_equal(logits(model, "it"), logits(model))
    finally:
        model.close()
