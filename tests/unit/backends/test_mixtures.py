"""Which type each tensor gets.

The digests are of what llama.cpp's `llama_model_quantize` chose for files with these tensors, for all
mixtures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from foredraft.backends.llamacpp.gguf_native import Tensor
from foredraft.backends.llamacpp.mixtures import MIXTURES, Traits, block, in_order, tensor_types, type_number
from foredraft.errors import ModelFormatError, UnsupportedModelError

ATTENTION = ("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "attn_v.bias")
DENSE = (*ATTENTION, "attn_norm.weight", "ffn_up.weight", "ffn_gate.weight", "ffn_down.weight")
EXPERTS = ("ffn_up_exps.weight", "ffn_gate_exps.weight", "ffn_down_exps.weight")
SPARSE = (*ATTENTION, "ffn_gate_inp.weight", *EXPERTS, "ffn_down_shexp.weight")
JOINT = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
LATENT = (
    *("attn_q_a.weight", "attn_q_b.weight", "attn_k_b.weight", "attn_v_b.weight", "attn_kv_a_mqa.weight"),
    *("hc_attn.weight", "indexer.attn_q_b.weight", "indexer.proj.weight", "indexer_compressor_gate.weight"),
    *("ssm_f_a.weight", "ssm_g_b.weight", "ssm_beta.weight", "attn_output.weight", *SPARSE[5:]),
)
KEPT = (
    *("altup_proj.weight", "laurel_l.weight", "ssm_conv1d.weight", "shortconv.conv.weight"),
    *("indexer.k_proj.weight", "time_mix_w1.weight", "time_mix_lerp_fused.weight", "attn_rel_b.weight"),
    *("a.rvq.codebook.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "x.rel_pos.weight"),
    *("per_layer_model_proj.weight", "v.patch_embd.weight", "attn_q_norm.weight", "something"),
)


@dataclass(frozen=True)
class Case:
    layers: int
    names: tuple[str, ...]
    architecture: str = "llama"
    experts: int = 0
    heads_per_kv: int = 1
    is_70b: bool = False
    tied: bool = False
    columns: int = 256

    @property
    def traits(self) -> Traits:
        return Traits(self.architecture, self.layers, self.experts, self.heads_per_kv, self.is_70b)

    def tensors(self) -> list[Tensor]:
        return in_order([tensor("token_embd.weight", self.columns, 4), *self._tensors()])

    def _tensors(self) -> Iterator[Tensor]:
        if not self.tied:
            yield tensor("output.weight", self.columns, 4)
        for layer in range(self.layers):
            for name in self.names:
                shape = (2, 2) if "_exps" in name else () if name.endswith("bias") else (2,)
                yield tensor(f"blk.{layer}.{name}", self.columns, *shape)


CASES = {
    "dense": Case(24, DENSE),
    "tied": Case(24, DENSE, heads_per_kv=4, tied=True),
    "odd number of layers": Case(33, DENSE, heads_per_kv=4),
    "70B": Case(80, DENSE, heads_per_kv=8, is_70b=True),
    "80 layers": Case(80, DENSE),
    "8 experts": Case(32, SPARSE, experts=8, heads_per_kv=4),
    "16 experts": Case(17, SPARSE, experts=16),
    "falcon": Case(32, JOINT, "falcon"),
    "falcon, tied": Case(40, JOINT, "falcon", heads_per_kv=8, tied=True),
    "joint": Case(12, JOINT, "gpt2"),
    "rows of 40": Case(8, DENSE, heads_per_kv=4, columns=40),
    "rows of 64": Case(8, DENSE, heads_per_kv=4, columns=64),
    "rows of 128": Case(8, DENSE, heads_per_kv=4, columns=128, tied=True),
    "glm5-next": Case(8, LATENT, "glm5-next", experts=8),
    "bailingmoe3": Case(8, LATENT, "bailingmoe3", experts=16),
}

CHOSEN = {
    "dense": "ccbbb7a20d4e4f82",
    "tied": "fb5f9e032819a875",
    "odd number of layers": "b36d2dc003f31317",
    "70B": "3e14710c5e813bbe",
    "80 layers": "17c5a6afb03ec2f9",
    "8 experts": "f86a5636edc10865",
    "16 experts": "579b91712cd7a472",
    "falcon": "abb14377b1ed95c9",
    "falcon, tied": "8b6c43a57e527558",
    "joint": "abdacfa51186a947",
    "rows of 40": "370f97effe78921a",
    "rows of 64": "f946d6bb93e148b0",
    "rows of 128": "e48d4ac650aafe95",
    "glm5-next": "2c2f6ad1c41dac1f",
    "bailingmoe3": "ff2d2da5b2bfa5fb",
}


def tensor(name: str, *shape: int) -> Tensor:
    return Tensor(name, "f32", shape, 0, 0, Path())


def types(mixture: str, case: Case) -> dict[str, str]:
    tensors = case.tensors()
    chosen = tensor_types(mixture, case.traits, tensors)
    return {tensor.name: chosen for tensor, chosen in zip(tensors, chosen, strict=True)}


def layers_of(kind: str, found: dict[str, str], type_name: str) -> list[int]:
    named = [name for name, chosen in found.items() if kind in name and chosen == type_name]
    return [int(name.split(".")[1]) for name in named]


@pytest.mark.parametrize("name", CASES)
def test_the_types_are_those_that_llama_cpp_chooses(name: str) -> None:
    case, digest = CASES[name], hashlib.sha256()
    for mixture in sorted(MIXTURES):
        try:
            digest.update(repr((mixture, [*types(mixture, case).items()])).encode())
        except UnsupportedModelError:
            digest.update(f"{mixture} refused".encode())
    assert digest.hexdigest()[:16] == CHOSEN[name]


def test_more_bits_where_they_matter() -> None:
    found = types("Q4_K_M", CASES["dense"])
    assert found["output.weight"] == "Q6_K"
    assert found["token_embd.weight"] == "Q4_K"
    assert layers_of("ffn_down", found, "Q6_K") == [0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23]
    assert layers_of("attn_v.weight", found, "Q6_K") == layers_of("ffn_down", found, "Q6_K")
    assert layers_of("attn_output", found, "Q6_K") == []
    assert {found[f"blk.0.{name}"] for name in ("attn_q.weight", "ffn_up.weight")} == {"Q4_K"}


def test_an_embedding_that_is_the_output_gets_its_bits() -> None:
    assert types("Q4_K_M", CASES["tied"])["token_embd.weight"] == "Q6_K"
    assert types("Q8_0", CASES["tied"])["token_embd.weight"] == "Q8_0"


def test_values_that_many_heads_share_are_small() -> None:
    assert layers_of("attn_v.weight", types("Q2_K", CASES["dense"]), "Q3_K") == [*range(24)]
    assert layers_of("attn_v.weight", types("Q2_K", CASES["tied"]), "Q4_K") == [*range(24)]
    assert layers_of("attn_v.weight", types("Q4_K_M", CASES["70B"]), "Q4_K") == []


def test_layers_of_experts_are_counted_by_name() -> None:
    found = types("Q4_K_S", CASES["16 experts"])
    assert layers_of("ffn_down_exps", found, "Q5_K") == [0, 1]
    assert layers_of("ffn_down_shexp", found, "Q5_K") == [0, 1]
    with pytest.raises(ModelFormatError, match=r"blk\.2\.ffn_down.weight is of none of the 2 layers"):
        tensor_types("Q4_0", Traits("llama", 2, 4, 1), [tensor("blk.2.ffn_down.weight", 32, 2)])


def test_what_is_small_and_matters_stays() -> None:
    found = types("Q4_0", Case(1, KEPT))
    assert {name for name, chosen in found.items() if chosen != "F32"} == {
        "token_embd.weight",
        "output.weight",
    }
    for name in ("position_embd.weight", "token_types.weight", "blk.0.attn_q.bias"):
        assert tensor_types("F16", CASES["dense"].traits, [tensor(name, 32, 2)]) == ["F32"]


def test_rows_that_are_no_multiple_of_a_block() -> None:
    assert set(types("Q4_K_M", CASES["rows of 64"]).values()) == {"Q5_0", "Q8_0", "F32"}
    assert set(types("Q4_K_M", CASES["rows of 40"]).values()) == {"F16", "F32"}
    with pytest.raises(UnsupportedModelError, match=r"multiple of 128 numbers, and those of .* have 64"):
        types("Q1_0", CASES["rows of 64"])


@pytest.mark.parametrize("mixture", MIXTURES)
def test_every_row_is_a_whole_number_of_blocks(mixture: str) -> None:
    for case in CASES.values():
        if mixture == "Q1_0" and case.columns < block("Q1_0"):
            continue
        assert all(case.columns % block(chosen) == 0 for chosen in types(mixture, case).values())


def test_the_order_is_by_layer() -> None:
    names = ["blk.10.a", "output.weight", "blk.2.b", "blk.2.a", "enc.blk.0.a"]
    found = [one.name for one in in_order([tensor(name, 1) for name in names])]
    assert found == ["enc.blk.0.a", "output.weight", "blk.2.a", "blk.2.b", "blk.10.a"]


def test_types_are_known_to_ggml() -> None:
    assert type_number("Q4_K") == 12
    assert block("Q4_K") == 256
