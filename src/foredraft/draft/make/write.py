"""Writing a trained head: a GGUF file of the architecture `eagle3`, and a folder in speculators' form.

The file has the target's tokenizer and no embeddings of its own: it uses the target's. Queries and keys are
0, since a row sees only itself. Metadata of ours: `foredraft.window` (rows that a row sees),
`foredraft.target_hash` and `foredraft.target_name` (the model it was made for), `foredraft.acceptance` (of
drafts of 1, 2 and 3 tokens, on answers that it has not seen), `foredraft.made` (when, UTC).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from foredraft.draft.make.sizes import Sizes
from foredraft.draft.make.weights import gguf_package
from foredraft.files import write_atomically
from foredraft.registry import missing_dependency

EPSILON = 1e-5
FORMATS = ("q4_1", "q8_0")
"""Of matrices, smallest first."""

Arrays = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """What a head's file says of it. `layers`: the target's layers whose inputs it reads; `target` is the
    target's file, from which the tokenizer is copied.
    """

    name: str
    sizes: Sizes
    layers: tuple[int, ...]
    target: Path
    target_name: str
    target_hash: str
    target_vocabulary: int
    context_length: int
    acceptance: tuple[float, ...]
    made: str


def rounded(arrays: Arrays, kind: str) -> dict[str, npt.NDArray[np.float32]]:
    """The arrays as they are read from a file of this format."""
    package = gguf_package()
    result = {}
    for name, array in arrays.items():
        stored = _format(package, name, array, kind)
        if stored is None:
            result[name] = array
        else:
            result[name] = package.dequantize(package.quantize(array, stored), stored)
    return result


def _format(package: Any, name: str, array: npt.NDArray[np.float32], kind: str) -> Any:
    """The format in which a tensor is stored; None for single precision."""
    if array.ndim == 1 or "norm" in name:
        return None
    types = package.GGMLQuantizationType
    if array.shape[1] % 32:
        return types.F16
    return types[kind.upper()]


def write_gguf(
    path: Path, arrays: Arrays, vocabulary: npt.NDArray[np.int64], facts: HeadFacts, kind: str
) -> None:
    """Write a head atomically. Raises OSError, MissingDependencyError."""
    package = gguf_package()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    writer = package.GGUFWriter(temporary, "eagle3")
    try:
        _describe(writer, facts, package, kind)
        for name, array in {**arrays, **_queries_and_keys(facts.sizes)}.items():
            stored = _format(package, name, array, kind if np.any(array) else FORMATS[0])
            if stored is None:
                writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
            else:
                writer.add_tensor(name, package.quantize(array, stored), raw_dtype=stored)
        writer.add_tensor("d2t", np.ascontiguousarray(vocabulary, np.int64))
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _queries_and_keys(sizes: Sizes) -> dict[str, npt.NDArray[np.float32]]:
    zero = np.zeros((sizes.rank, 2 * sizes.width), np.float32)
    return {"blk.0.attn_q.weight": zero, "blk.0.attn_k.weight": zero}


def _describe(writer: Any, facts: HeadFacts, package: Any, kind: str) -> None:
    sizes = facts.sizes
    writer.add_name(facts.name)
    writer.add_file_type(int(package.LlamaFileType[f"MOSTLY_{kind.upper()}"]))
    writer.add_quantization_version(package.GGML_QUANT_VERSION)
    writer.add_context_length(facts.context_length)
    writer.add_embedding_length(sizes.width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(sizes.ffn)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)
    writer.add_rope_dimension_count(sizes.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(facts.target_vocabulary)
    _copy_tokenizer(writer, facts.target, package)
    writer.add_array("eagle3.target_layers", [int(layer) for layer in facts.layers])
    writer.add_uint32("eagle3.target_hidden_size", sizes.width)
    writer.add_bool("eagle3.norm_before_fc", val=True)
    writer.add_uint32("foredraft.window", 1)
    writer.add_string("foredraft.target_hash", facts.target_hash)
    writer.add_string("foredraft.target_name", facts.target_name)
    writer.add_array("foredraft.acceptance", [float(share) for share in facts.acceptance])
    writer.add_string("foredraft.made", facts.made)


def _copy_tokenizer(writer: Any, target: Path, package: Any) -> None:
    """llama.cpp compares a head's tokens with the target's."""
    for key, field in package.GGUFReader(target).fields.items():
        if key.startswith("tokenizer.ggml."):
            kind, *inner = field.types
            writer.add_key_value(key, field.contents(), kind, inner[-1] if inner else None)


_NAMES = {
    "fc.weight": "fc.weight",
    "enc.output_norm.weight": "input_norm.weight",
    "output.weight": "lm_head.weight",
    "output_norm.weight": "norm.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "attn_norm_2.weight": "hidden_norm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
"""speculators' names by those of GGUF; a layer's have `layers.0.` before them."""


def safetensors_package() -> Any:
    """The package that writes tensors to such files. Raises MissingDependencyError."""
    try:
        import safetensors.numpy
    except ImportError:
        raise missing_dependency("safetensors", "Writing a head as safetensors", extra="draft") from None
    return safetensors.numpy


def write_safetensors(
    folder: Path, arrays: Arrays, vocabulary: npt.NDArray[np.int64], facts: HeadFacts
) -> None:
    """Write a head in speculators' form, in half precision. Raises OSError, MissingDependencyError."""
    package = safetensors_package()
    tensors: dict[str, npt.NDArray[Any]] = {}
    for name, array in {**arrays, **_queries_and_keys(facts.sizes)}.items():
        inner = name.removeprefix("blk.0.")
        place = "layers.0." if inner != name else ""
        tensors[place + _NAMES[inner]] = array.astype(np.float16)
    # Each token's distance from its number in the head's vocabulary.
    tensors["d2t"] = vocabulary - np.arange(len(vocabulary))
    known = np.zeros(facts.target_vocabulary, np.bool_)
    known[vocabulary] = True
    tensors["t2d"] = known
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "model.safetensors", package.save(tensors), mode=0o644)
    config = json.dumps(_speculators_config(facts), indent=2)
    write_atomically(folder / "config.json", config.encode() + b"\n", mode=0o644)


def _speculators_config(facts: HeadFacts) -> dict[str, Any]:
    sizes = facts.sizes
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": sizes.vocabulary,
        "target_hidden_size": sizes.width,
        "norm_before_residual": False,
        "norm_before_fc": True,
        "eagle_aux_hidden_state_layer_ids": list(facts.layers),
        "torch_dtype": "float16",
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": sizes.width,
            "intermediate_size": sizes.ffn,
            "num_hidden_layers": 1,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.heads,
            "head_dim": sizes.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": facts.context_length,
            "rms_norm_eps": EPSILON,
            "rope_theta": 10000.0,
            "vocab_size": facts.target_vocabulary,
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": facts.target_name, "architectures": []},
        },
        "foredraft_window": 1,
        "foredraft_target_hash": facts.target_hash,
        "foredraft_acceptance": list(facts.acceptance),
        "foredraft_made": facts.made,
    }
