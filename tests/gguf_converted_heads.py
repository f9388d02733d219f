"""Small GGUF files of models with a layer for multi-token prediction, made of folders of safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def glm4_moe_of(path: Path, folder: Path) -> Path:
    """Write the GGUF of `torch_heads.make_mtp(folder, "glm4_moe")`."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    layers = config["num_hidden_layers"] + 1
    writer = new_writer(
        path,
        "glm4moe",
        name="Tiny GLM",
        vocab=config["vocab_size"],
        layers=layers,
        embd=config["hidden_size"],
        ctx_train=config["max_position_embeddings"],
        weight_type="f32",
    )
    writer.kv_data[0].pop("glm4moe.feed_forward_length")
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"] // 2)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_uint32("glm4moe.nextn_predict_layers", 1)
    write(writer, _tensors(load_file(folder / "model.safetensors"), layers, config["n_routed_experts"]))
    return path


def _tensors(stored: Arrays, layers: int, experts: int) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    for theirs, ours in _ENDS.items():
        yield ours, stored.pop(theirs)
    for number in range(layers):
        prefix = f"model.layers.{number}."
        for part in ("gate", "up", "down"):
            names = [f"{prefix}mlp.experts.{expert}.{part}_proj.weight" for expert in range(experts)]
            if names[0] in stored:
                yield f"blk.{number}.ffn_{part}_exps.weight", np.stack([stored.pop(name) for name in names])
        for name in [name for name in stored if name.startswith(prefix)]:
            yield f"blk.{number}.{_LAYER[name.removeprefix(prefix)]}", stored.pop(name)
    assert not stored
