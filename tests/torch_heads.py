"""Tiny heads for torch models: EAGLE-3 in both forms, and layers for multi-token prediction.

The weights are random, fixed by `seed`, or right by construction: for a target whose next token depends on
the last one only, a head that reads nothing but the token's embedding proposes what the target will say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file

import torch_factory

HIDDEN, HEADS, GROUPS, HEAD, INNER = 64, 4, 2, 16, 96
"""The sizes of `torch_factory.TINY`, which a head need not share but for the first."""

EAGLE3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": HEAD,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": torch_factory.CONTEXT,
    "vocab_size": torch_factory.VOCAB,
    "tie_word_embeddings": False,
}
LAYERS = (1, 2, 3)
"""The layers whose inputs the heads here read."""


def eagle3_tensors(
    *, known: Sequence[int] | None = None, seed: int = 0, own_embedding: bool = False, own_output: bool = True
) -> dict[str, Any]:
    """Random weights of a head that knows the tokens `known` (None for all), by SpecForge's names."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(outputs: int, inputs: int) -> Any:
        return torch.randn(outputs, inputs, generator=generator) * 2.0 * inputs**-0.5

    def norm(size: int) -> Any:
        return 1 + 0.1 * torch.randn(size, generator=generator)

    kv = GROUPS * HEAD
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD, 2 * HIDDEN),
        "self_attn.k_proj": (kv, 2 * HIDDEN),
        "self_attn.v_proj": (kv, 2 * HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    tensors = {f"midlayer.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        tensors[f"midlayer.{name}.weight"] = norm(HIDDEN)
    tensors |= {"fc.weight": matrix(HIDDEN, len(LAYERS) * HIDDEN), "norm.weight": norm(HIDDEN)}
    vocabulary = torch_factory.VOCAB
    if own_embedding:
        tensors["embed_tokens.weight"] = matrix(vocabulary, HIDDEN)
    if known is not None:
        ids = torch.tensor(list(known))
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.isin(torch.arange(vocabulary), ids)
    if own_output:
        tensors["lm_head.weight"] = matrix(vocabulary if known is None else len(known), HIDDEN)
    return tensors


def write_specforge(folder: Path, tensors: Mapping[str, Any], **changes: Any) -> Path:
    """Write a head as SpecForge does; `changes` of its configuration, where None leaves a key out."""
    config = EAGLE3 | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in LAYERS]}}
    if "d2t" in tensors:
        config["draft_vocab_size"] = len(tensors["d2t"])
    return _write(folder, tensors, config | changes)


def write_speculators(folder: Path, tensors: Mapping[str, Any], **changes: Any) -> Path:
    """Write a head as speculators does."""
    config: dict[str, Any] = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": len(tensors.get("d2t", range(torch_factory.VOCAB))),
        "eagle_aux_hidden_state_layer_ids": list(LAYERS),
        "norm_before_residual": False,
        "transformer_layer_config": {
            key: value for key, value in EAGLE3.items() if key not in ("architectures", "rope_theta")
        }
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        "speculators_config": {"verifier": {"name_or_path": "target", "architectures": ["LlamaForCausalLM"]}},
    }
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    return _write(folder, renamed, config | changes)


def _write(folder: Path, tensors: Mapping[str, Any], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def change_tensors(folder: Path, changes: Mapping[str, Any]) -> Path:
    """Add tensors to a folder of one file, replace them, or with None take them away."""
    file = folder / "model.safetensors"
    tensors = {**load_file(file), **changes}
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None},
        file,
        metadata={"format": "pt"},
    )
    return folder


# --- layers for multi-token prediction -----------------------------------------------------------------

_SMALL = {"num_hidden_layers": 3}
_ROUTED: dict[str, Any] = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}

MTP: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": (
        "Qwen3NextConfig",
        torch_factory.TINY | torch_factory.DELTA_NET | torch_factory.EXPERTS,
    ),
    "qwen3_5": ("Qwen3_5TextConfig", torch_factory.TINY | torch_factory.DELTA_NET),
    "qwen3_5_moe": (
        "Qwen3_5MoeTextConfig",
        torch_factory.TINY | torch_factory.DELTA_NET | torch_factory.EXPERTS,
    ),
    "glm4_moe": ("Glm4MoeConfig", torch_factory.TINY | _SMALL | _ROUTED),
    "glm4_moe_lite": (
        "Glm4MoeLiteConfig",
        {name: value for name, value in torch_factory.TINY.items() if name != "head_dim"}
        | _SMALL
        | _ROUTED
        | _LATENT
        | {"num_key_value_heads": 4, "mlp_layer_types": ["dense", "sparse", "sparse"]},
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {name: value for name, value in torch_factory.TINY.items() if name != "head_dim"}
        | _SMALL
        | _ROUTED
        | _LATENT
        | {"num_key_value_heads": 4},
    ),
    "mimo_v2_flash": (
        "MiMoV2FlashConfig",
        torch_factory.TINY
        | _SMALL
        | _ROUTED
        | {
            "v_head_dim": 12,
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", "sparse", "dense"],
        },
    ),
}
"""A configuration class of transformers and its arguments: models whose last layer becomes the extra one."""

_LISTS = ("layer_types", "mlp_layer_types")


def make_deeper(folder: Path, family: str, *, seed: int = 0) -> Path:
    """Write the model of which the last layer becomes the extra one."""
    torch_factory.ARCHITECTURES.setdefault(family, MTP[family])
    return torch_factory.make_model(folder, family, seed=seed, tie_word_embeddings=False)


def make_mtp(folder: Path, family: str, *, seed: int = 0, knowing: bool = False) -> Path:
    """Write a tiny model with a layer for multi-token prediction, as its family stores it.

    It is the last layer of a model that is one layer deeper, with random weights; with `knowing` the layers
    of both say nothing, so that the next token depends on the last one only, and the layer knows it.
    """
    make_deeper(folder, family, seed=seed)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    extra = config["num_hidden_layers"] - 1
    config |= {"num_hidden_layers": extra, "num_nextn_predict_layers": 1}
    config |= {name: config[name][:extra] for name in _LISTS if config.get(name)}
    file.write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    if knowing:
        tensors = {name: _silent(name, tensor) for name, tensor in tensors.items()}
    made = {_stored_by(family, name, extra): tensor for name, tensor in tensors.items()}
    parts = around(family, tensors["model.norm.weight"], seed=seed, knowing=knowing)
    prefix = _PREFIXES.get(family, "mtp.").format(extra)
    names = _QWEN if family.startswith("qwen") else _OTHERS
    made |= {f"{prefix}{names[part]}.weight": tensor for part, tensor in parts.items()}
    if family == "mimo_v2_flash":
        made[f"{prefix}final_layernorm.weight"] = made.pop(f"{prefix}shared_head.norm.weight")
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


_PREFIXES = {
    "glm4_moe": "model.layers.{}.",
    "glm4_moe_lite": "model.layers.{}.",
    "deepseek_v3": "model.layers.{}.",
    "mimo_v2_flash": "model.mtp.layers.0.",
}
_QWEN = {"join": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "norm": "norm"}
_OTHERS = {"join": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "norm": "shared_head.norm"}


def _silent(name: str, tensor: Any) -> Any:
    ends = ("o_proj.weight", "down_proj.weight", "out_proj.weight", "experts.down_proj")
    return torch.zeros_like(tensor) if name.endswith(ends) else tensor


def _stored_by(family: str, name: str, extra: int) -> str:
    """What a tensor of the last layer is called where the layer is one for multi-token prediction."""
    prefix = f"model.layers.{extra}."
    if not name.startswith(prefix):
        return name
    rest = name.removeprefix(prefix)
    if family.startswith("qwen"):
        return f"mtp.layers.0.{rest}"
    if family == "mimo_v2_flash":
        rest = rest.replace("post_attention_layernorm", "pre_mlp_layernorm")
        return f"model.mtp.layers.0.{rest.replace('.sinks', '.attention_sink_bias')}"
    return name


def around(family: str, last_norm: Any, *, seed: int = 0, knowing: bool = False) -> dict[str, Any]:
    """The weights of the product and the norms around the layer, for a model with this last norm."""
    generator = torch.Generator().manual_seed(seed + 1)
    size = len(last_norm)
    plain = torch.zeros(size) if family.startswith("qwen") else torch.ones(size)  # theirs add one
    if knowing:
        return {
            "join": torch.eye(size, 2 * size),
            "enorm": plain,
            "hnorm": plain.clone(),
            "norm": last_norm.clone(),
        }
    made = {"join": torch.randn(size, 2 * size, generator=generator) * size**-0.5}
    return made | {
        name: plain + 0.1 * torch.randn(size, generator=generator) for name in ("enorm", "hnorm", "norm")
    }


# --- right by construction -----------------------------------------------------------------------------


def make_forgetful(folder: Path, **changes: Any) -> Path:
    """A Llama whose next token depends on the last one only: its layers add nothing to the embedding."""
    torch_factory.make_tiny_llama(folder, num_hidden_layers=4, tie_word_embeddings=False, **changes)
    tensors = load_file(folder / "model.safetensors")
    return change_tensors(folder, {name: _silent(name, tensor) for name, tensor in tensors.items()})


def write_knowing(folder: Path, target: Path, *, known: Sequence[int] | None = None) -> Path:
    """Write a head that says what the target of `make_forgetful` will say.

    Its rows see only themselves and their token, whose embedding attention hands on as it is.
    """
    trunk = load_file(target / "model.safetensors")
    tensors = eagle3_tensors(known=known)
    tensors |= {
        "midlayer.self_attn.k_proj.weight": torch.zeros(HIDDEN, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": torch.eye(HIDDEN, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": torch.eye(HIDDEN),
        "midlayer.mlp.down_proj.weight": torch.zeros(HIDDEN, INNER),
        "midlayer.input_layernorm.weight": torch.ones(HIDDEN),
        "midlayer.hidden_norm.weight": torch.zeros(HIDDEN),
        "norm.weight": trunk["model.norm.weight"],
        "lm_head.weight": trunk["lm_head.weight"][slice(None) if known is None else list(known)],
    }
    changes = {"norm_before_residual": True, "foredraft_window": 1, "num_key_value_heads": HEADS}
    return write_specforge(folder, tensors, **changes)


# --- of a GGUF -----------------------------------------------------------------------------------------

_MIMO_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "pre_mlp_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "nextn.eh_proj": "eh_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
}


def make_mimo_of(folder: Path, source: Path, *, layers: int = 2) -> Path:
    """Write a MiMo with the embeddings, the output and the extra layers of `gguf_mimo.tiny_mimo2`'s file. Its
    `layers` other layers are silent.
    """
    torch_factory.ARCHITECTURES.setdefault("mimo_v2_flash", MTP["mimo_v2_flash"])
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    torch_factory.make_model(
        folder,
        "mimo_v2_flash",
        vocab_size=384,
        num_hidden_layers=layers,
        intermediate_size=2 * HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS // 2,  # layers with a window have twice as many
        head_dim=HEAD,
        v_head_dim=HEAD,
        sliding_window=512,
        attention_value_scale=None,
        rms_norm_eps=1e-5,
        layer_types=["full_attention", "sliding_attention"],
        mlp_layer_types=["dense", "dense"],
        rope_parameters={"full_attention": rope, "sliding_attention": rope},
        tie_word_embeddings=False,
    )
    tensors = {
        name: _silent(name, tensor) for name, tensor in load_file(folder / "model.safetensors").items()
    }
    for stored in gguf.GGUFReader(source).tensors:
        values = torch.from_numpy(np.array(stored.data))
        name = stored.name.removesuffix(".weight")
        if not name.startswith("blk."):
            ends = {"output": "lm_head", "output_norm": "model.norm", "token_embd": "model.embed_tokens"}
            tensors[f"{ends[name]}.weight"] = values
            continue
        _, number, part = name.split(".", 2)
        prefix = f"model.mtp.layers.{int(number) - layers}."
        if int(number) < layers:
            continue
        if part == "attn_qkv":
            sizes = [HEADS * HEAD, GROUPS * HEAD, GROUPS * HEAD]
            for which, matrix in zip("qkv", values.split(sizes), strict=True):
                tensors[f"{prefix}self_attn.{which}_proj.weight"] = matrix.contiguous()
            continue
        tensors[f"{prefix}{_MIMO_BLOCK[part]}.weight"] = values
        tensors[f"{prefix}self_attn.attention_sink_bias"] = torch.full((HEADS,), -1e9)  # no sinks
        tensors[f"{prefix}final_layernorm.weight"] = torch.ones(HIDDEN)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
