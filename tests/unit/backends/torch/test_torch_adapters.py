"""LoRA adapters in PEFT's format: the logits of merged weights, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import torch_factory
from foredraft import Engine, SamplingParams
from foredraft.backends.torch import BACKEND
from foredraft.config import ModelOptions
from foredraft.errors import ForedraftError
from foredraft.library.adapter_files import adapters_of
from foredraft.protocols import Model
from foredraft.types import Logits, Rows
from model_cases import text_tokens
from peft_adapters import peft

TEXT = text_tokens(12)
KINDS = ("llama", "qwen3", "gemma2", "gpt2")
"""Two that are computed by our own forward, and two by that of transformers."""


def load(folder: Path, **adapters: Any) -> Model:
    options = ModelOptions(
        context_length=128,
        sequences=3,
        threads=1,
        gpu_layers=0,
        dtype="fp32",
        probe=False,
        adapters=adapters_of({name: [str(it) for it in files] for name, files in adapters.items()}),
    )
    return BACKEND.load(folder, options)


def logits_of(model: Model, adapter: str = "", seq: int = 0) -> Logits:
    model.release(seq)
    model.adapt(seq, adapter)
    return model.forward([Rows(seq, 0, TEXT, len(TEXT))]).copy()


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("adapted")

    def make(kind: str) -> Path:
        folder = root / kind
        if not folder.exists():
            torch_factory.make_model(folder, kind)
            peft(root / f"{kind}-one", folder, seed=1, transposed=kind == "gpt2")
            peft(root / f"{kind}-two", folder, seed=2, rank=7, use_rslora=True, transposed=kind == "gpt2")
        return folder

    return make


def merged(model: Path, folder: Path, *parts: tuple[Path, float]) -> Path:
    """The model with adapters multiplied into its weights."""
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    for path, scale in parts:
        config, pairs = (
            json.loads((path / "adapter_config.json").read_text()),
            load_file(path / "adapter_model.safetensors"),
        )
        factor = scale * config["lora_alpha"] / (config["r"] ** (0.5 if config.get("use_rslora") else 1))
        for name, a in pairs.items():
            if not name.endswith("lora_A.weight"):
                continue
            layer = name.removeprefix("base_model.model.").removesuffix("lora_A.weight")
            delta = factor * pairs[name.replace("lora_A", "lora_B")] @ a
            tensors[f"{layer}weight"] += delta.T if model.name == "gpt2" else delta
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_what_the_merged_weights_do(
    kind: str, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = model_of(kind)
    one, two = (folder.parent / f"{kind}-{name}" for name in ("one", "two"))
    model = load(folder, one=[one], two=[two], both=[one, f"{two}:0.5"])
    try:
        cases = {"one": [(one, 1.0)], "two": [(two, 1.0)], "both": [(one, 1.0), (two, 0.5)]}
        for name, parts in cases.items():
            whole = load(merged(folder, tmp_path / name, *parts))
            expected = logits_of(whole)
            whole.close()
            largest = np.abs(expected).max()
            assert np.abs(logits_of(model, name) - expected).max() < 1e-3 * largest
            assert np.abs(logits_of(model) - expected).max() > 0.05 * largest
        assert len(set(model.adapters.values())) == 3
        assert model.info.memory["adapters"] > 0
    finally:
        model.close()


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_forward_with_several_adapters_has_the_bits_of_one_for_each(
    kind: str, model_of: Callable[[str], Path]
) -> None:
    folder = model_of(kind)
    model = load(folder, one=[f"{folder}-one"], two=[f"{folder}-two"])
    try:
        names = ("two", "", "one")
        alone = [logits_of(model, adapter) for adapter in names]
        for seq, adapter in enumerate(names):
            model.release(seq)
            model.adapt(seq, adapter)
        found = model.forward([Rows(seq, 0, TEXT, len(TEXT) - seq) for seq in (2, 0, 1)])
        assert np.array_equal(found, np.concatenate([alone[seq][seq:] for seq in (2, 0, 1)]))
        with pytest.raises(ForedraftError, match="holds cells"):
            model.adapt(0, "")
    finally:
        model.close()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_no_token_changes(
    kind: str, temperature: float, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, adapters = model_of(kind), ("one", "", "two", "one")
    prompts = [text_tokens(12), [30, 31, 32] * 5, text_tokens(25, seed=1), text_tokens(7, seed=2)]
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=24, ignore_eos=True)
    found = []
    for speculate in ("off", "suffix;recycle"):
        with Engine.load(
            folder,
            speculate=speculate,
            adapters={"one": f"{folder}-one", "two": f"{folder}-two"},
            context_length=128,
            sequences=4,
            threads=1,
            gpu_layers=0,
            dtype="fp32",
            cache_dir=tmp_path,
            remember=False,
        ) as engine:
            able = engine.model.capabilities
            assert able.batch_invariant, able.invariance_note
            asked = list(zip(prompts, adapters, strict=True))
            alone = [engine.generate(prompt, params, adapter=name).tokens for prompt, name in asked]
            requests = [engine.add(prompt, params, adapter=name) for prompt, name in asked]
            found += [alone, [done.tokens for done in engine.run(requests)]]
    assert all(texts == found[0] for texts in found)


# --- what is refused ------------------------------------------------------------------------------------

EMBEDDING = {"base_model.model.model.embed_tokens.lora_embedding_A": torch.zeros(4, 300)}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "dora": ({"use_dora": True}, "uses DoRA"),
    "saved": ({"modules_to_save": ["lm_head"]}, "uses modules_to_save"),
    "bias": ({"bias": "all"}, "uses bias=all"),
    "method": ({"peft_type": "IA3"}, "the method IA3"),
    "pattern": ({"alpha_pattern": {"q_proj": 4}}, "uses alpha_pattern"),
    "pissa": ({"init_lora_weights": "pissa_niter_4"}, "initialisation pissa"),
    "embedding": ({"extra": EMBEDDING}, "lora_embedding_A"),
    "alone": (
        {"extra": {"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 64)}},
        "two matrices of one rank",
    ),
    "layer": (
        {
            "extra": {
                "base_model.model.nothing.lora_A.weight": torch.zeros(4, 64),
                "base_model.model.nothing.lora_B.weight": torch.zeros(64, 4),
            }
        },
        "has no linear layer nothing",
    ),
    "shape": (
        {
            "extra": {
                "base_model.model.lm_head.lora_A.weight": torch.zeros(4, 32),
                "base_model.model.lm_head.lora_B.weight": torch.zeros(300, 4),
            }
        },
        "does not fit",
    ),
    "number": (
        {
            "extra": {
                "base_model.model.lm_head.lora_A.weight": torch.full((4, 64), torch.nan),
                "base_model.model.lm_head.lora_B.weight": torch.zeros(300, 4),
            }
        },
        "no number",
    ),
    "rank 0": (
        {
            "extra": {
                "base_model.model.lm_head.lora_A.weight": torch.zeros(0, 64),
                "base_model.model.lm_head.lora_B.weight": torch.zeros(300, 0),
            }
        },
        "lm_head needs two matrices of one rank",
    ),
    "twice": (
        {
            "extra": {
                f"{prefix}lm_head.lora_{part}.weight": torch.zeros(shape)
                for prefix in ("", "base_model.model.")
                for part, shape in (("A", (4, 64)), ("B", (300, 4)))
            }
        },
        "holds lm_head.lora_.* twice",
    ),
    "whole numbers": (
        {
            "extra": {
                "base_model.model.lm_head.lora_A.weight": torch.zeros(4, 64, dtype=torch.int32),
                "base_model.model.lm_head.lora_B.weight": torch.zeros(300, 4),
            }
        },
        "int32",
    ),
    "empty": ({"targets": "nothing"}, "is empty"),
    "loftq": ({"init_lora_weights": "loftq"}, "initialisation loftq"),
    "huge": ({"lora_alpha": 1e308}, "too large"),
    "huge whole": ({"lora_alpha": 10**400}, "lora_alpha is no number"),
    "nan": ({"lora_alpha": float("nan")}, "lora_alpha is no number"),
    "alpha": ({"lora_alpha": "much"}, "lora_alpha is no number"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_adapter_is_refused_by_name(
    name: str, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    options, message = WRONG[name]
    folder = model_of("llama")
    wrong = peft(tmp_path / "wrong", folder, **options)
    with pytest.raises(ForedraftError, match=message) as caught:
        load(folder, it=[wrong])
    assert caught.value.hint


@pytest.mark.parametrize("scale", ["900", "-900"])
def test_a_scale_that_makes_them_too_large(
    scale: str, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = model_of("llama")
    large = peft(tmp_path / "large", folder, strength=1e36)
    with pytest.raises(ForedraftError, match="too large"):
        load(folder, it=[f"{large}:{scale}"])


@pytest.mark.parametrize("part", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "other"])
def test_a_damaged_adapter_is_refused(
    part: str, damage: str, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = model_of("llama")
    file = peft(tmp_path / "damaged", folder) / part
    whole = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "other": b"[1]" * 20}[damage])
    with pytest.raises(ForedraftError):
        load(folder, it=[file.parent])


def test_a_file_is_no_adapter_of_a_folder(model_of: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "one.gguf").write_bytes(b"GGUF")
    with pytest.raises(ForedraftError, match="is a file, and the model is a folder"):
        load(model_of("llama"), it=[tmp_path / "one.gguf"])
