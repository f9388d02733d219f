"""Small GGUF files of models with a layer for multi-token prediction, made of folders of safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from gguf_parts import new_writer, write

Arrays = dict[str, npt.NDArray[np.float32]]

_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    "eh_proj.weight": "nextn.eh_proj.weight",
    "enorm.weight": "nextn.enorm.weight",
    "hnorm.weight": "nextn.hnorm.weight",
    "shared_head.norm.weight": "nextn.shared_head_norm.weight",
}
_LATENT = {
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
}
_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def glm4_moe_of(path: Path, folder: Path) -> Path:
    """Write the GGUF of `torch_heads.make_mtp(folder, "glm4_moe")`."""
    config = _config(folder)
    writer = _writer(path, "glm4moe", config)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"] // 2)
    write(writer, _tensors(load_file(folder / "model.safetensors"), config, _LAYER))
    return path


def deepseek_of(path: Path, folder: Path) -> Path:
    """Write the GGUF of `torch_heads.make_mtp(folder, "deepseek_v3")`: a key and a value are the same latent
    numbers for all heads there, with the matrices that make them into heads' own.
    """
    config = _config(folder)
    rank, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
    writer = _writer(path, "deepseek2", config)
    writer.add_head_count_kv(1)
    writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + turned)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config["qk_head_dim"])
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(turned)
    write(writer, _tensors(load_file(folder / "model.safetensors"), config, _LAYER | _LATENT))
    return path


def _config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def _writer(path: Path, architecture: str, config: dict[str, Any]) -> gguf.GGUFWriter:
    writer = new_writer(
        path,
        architecture,
        name="Tiny layer",
        vocab=config["vocab_size"],
        layers=config["num_hidden_layers"] + 1,
        embd=config["hidden_size"],
        ctx_train=config["max_position_embeddings"],
        weight_type="f32",
    )
    for usual in ("feed_forward_length", "attention.layer_norm_rms_epsilon"):
        writer.kv_data[0].pop(f"{architecture}.{usual}")
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_uint32(f"{architecture}.nextn_predict_layers", 1)
    return writer


def _tensors(
    stored: Arrays, config: dict[str, Any], names: dict[str, str]
) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    for theirs, ours in _ENDS.items():
        yield ours, stored.pop(theirs)
    for number in range(config["num_hidden_layers"] + 1):
        prefix = f"model.layers.{number}."
        for part in ("gate", "up", "down"):
            experts = [
                f"{prefix}mlp.experts.{expert}.{part}_proj.weight"
                for expert in range(config["n_routed_experts"])
            ]
            if experts[0] in stored:
                yield f"blk.{number}.ffn_{part}_exps.weight", np.stack([stored.pop(name) for name in experts])
        if f"{prefix}self_attn.kv_b_proj.weight" in stored:
            both = stored.pop(f"{prefix}self_attn.kv_b_proj.weight")
            heads = both.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
            keys, values = np.split(heads, [config["qk_nope_head_dim"]], 1)
            yield f"blk.{number}.attn_k_b.weight", np.ascontiguousarray(keys.transpose(0, 2, 1))
            yield f"blk.{number}.attn_v_b.weight", np.ascontiguousarray(values)
        for name in [name for name in stored if name.startswith(prefix)]:
            yield f"blk.{number}.{names[name.removeprefix(prefix)]}", stored.pop(name)
    assert not stored
