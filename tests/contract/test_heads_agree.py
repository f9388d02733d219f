"""The same weights in a GGUF head over a GGUF target, and in safetensors over a torch target: same drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import gguf_converted_heads
import gguf_factory
import gguf_heads
import gguf_hybrids
import gguf_mimo
import torch_factory
import torch_heads
from foredraft.backends import llamacpp
from foredraft.backends import torch as torch_backend
from foredraft.draft.make.sizes import Sizes
from foredraft.draft.make.torch_head import HeadNetwork
from foredraft.draft.make.weights import target_parts
from foredraft.draft.make.write import HeadFacts, write_gguf, write_safetensors
from foredraft.protocols import Backend, Head, Model
from foredraft.types import Features, HeadRows, Logits, Rows
from model_cases import Workspace, one_thread, text_tokens

VOCABULARY, HEADS, GROUPS = 384, 4, 2
TEXT, DRAFT = text_tokens(30), [40, 77, 120]
CHOSEN = list(range(20, 200, 3))
CLOSE = 0.03
"""llama.cpp holds keys and values in 16 bits."""

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_norm_2": "hidden_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ENDS = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}


def tensors_of(path: Path, layer: str, ends: str) -> dict[str, Any]:
    """A GGUF's tensors by the names that transformers has for them. Queries and keys are turned in halves
    there, and in neighbouring pairs in a GGUF of this architecture.
    """
    found: dict[str, Any] = {}
    for stored in gguf.GGUFReader(path).tensors:
        values = torch.from_numpy(np.array(stored.data))
        name = stored.name.removesuffix(".weight")
        if name.startswith("blk."):
            _, number, part = name.split(".")
            if part in ("attn_q", "attn_k"):
                heads = HEADS if part == "attn_q" else GROUPS
                values = values.view(heads, -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)
            found[f"{layer.format(number)}{LAYER[part]}.weight"] = values
        elif name == "d2t":
            found[name] = values.long() - torch.arange(len(values))
        else:
            own = "" if name == "output" else ends
            found[f"{own}{ENDS.get(name, name)}.weight"] = values
    return found


def torch_target(folder: Path, source: Path, layers: int = 4) -> None:
    """Write the target of a GGUF as a folder."""
    torch_factory.make_tiny_llama(
        folder,
        num_hidden_layers=layers,
        vocab_size=VOCABULARY,
        intermediate_size=128,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    tensors = tensors_of(source, "model.layers.{}.", "model.")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def torch_head(folder: Path, source: Path, *, window: int) -> None:
    """Write the head of a GGUF as SpecForge would."""
    changes = {"vocab_size": VOCABULARY, "intermediate_size": 128, "foredraft_window": window}
    torch_heads.write_specforge(folder, tensors_of(source, "midlayer.", ""), **changes)


def loaded(backend: Backend, workspace: Workspace, target: Path, head: Path | None) -> tuple[Model, Head]:
    options = replace(
        one_thread(workspace, 128, 2), watch=backend.features_for(target, head), probe=False, dtype="auto"
    )
    model = backend.load(target, options)
    return model, model.load_head(head, sequences=2)


def drafted(model: Model, head: Head) -> tuple[Features, Logits]:
    """The target's hidden states of a text, and the head's logits after it and each token of a draft."""
    model.forward([Rows(0, 0, TEXT, 0)])
    features = model.features().copy()
    found = [head.forward([HeadRows(0, 1, TEXT[1:], features[:-1], 1)])[0].copy()]
    for i, token in enumerate(DRAFT):
        found.append(head.forward([HeadRows(0, len(TEXT) + i, [token], None, 1)])[0].copy())
    return features, np.stack(found)


def greedy(model: Model, head: Head, count: int) -> list[int]:
    """The head's own draft after the text."""
    row = head.forward([HeadRows(1, 1, TEXT[1:], model.features()[:-1], 1)])[0]
    draft: list[int] = []
    while len(draft) < count:
        draft.append(int(row.argmax()))
        row = head.forward([HeadRows(1, len(TEXT) + len(draft) - 1, draft[-1:], None, 1)])[0]
    return draft


def apart(left: Any, right: Any) -> float:
    finite = np.isfinite(right)
    assert np.array_equal(np.isfinite(left), finite)
    return float(np.abs(left[finite] - right[finite]).max() / np.abs(right[finite]).max())


@pytest.mark.parametrize(
    ("name", "chosen", "window"), [("whole", None, 0), ("chosen", CHOSEN, 0), ("alone", None, 1)]
)
def test_both_backends_draft_the_same(
    workspace: Workspace, name: str, chosen: Sequence[int] | None, window: int
) -> None:
    def write_head(path: Path) -> None:
        gguf_heads.tiny_eagle3(path, vocab=VOCABULARY, layers=(1, 2, 3), chosen=chosen, window=window)

    target = workspace.file(
        "agree.gguf", lambda path: gguf_factory.tiny_llama(path, vocab=VOCABULARY, layers=4, mixing=0.5)
    )
    folder = workspace.file("agree", lambda path: torch_target(path, target))
    head = workspace.file(f"agree-{name}.gguf", write_head)
    theirs = workspace.file(f"agree-{name}", lambda path: torch_head(path, head, window=window))
    results = []
    for backend, files in ((llamacpp.BACKEND, (target, head)), (torch_backend.BACKEND, (folder, theirs))):
        model, loaded_head = loaded(backend, workspace, *files)
        assert (loaded_head.needs, loaded_head.window) == (("layer:1", "layer:2", "layer:3"), window)
        results.append((*drafted(model, loaded_head), greedy(model, loaded_head, 6)))
        loaded_head.close()
        model.close()
    (features, logits, draft), (torch_features, torch_logits, torch_draft) = results
    assert apart(torch_features, features) < CLOSE
    assert apart(torch_logits, logits) < CLOSE
    assert torch_draft == draft


def test_a_head_that_was_made_here_drafts_the_same_from_both_of_its_files(workspace: Workspace) -> None:
    """`foredraft draft make` writes a GGUF in eight bits, and a folder in half floats."""
    target = workspace.file(
        "agree-6.gguf", lambda path: gguf_factory.tiny_llama(path, vocab=VOCABULARY, layers=6, mixing=0.5)
    )
    folder = workspace.file("agree-6", lambda path: torch_target(path, target, 6))
    sizes, numbers = Sizes(width=64, rank=32, ffn=96, vocabulary=len(CHOSEN)), np.asarray(CHOSEN)
    facts = HeadFacts(
        name="Tiny head",
        sizes=sizes,
        layers=(1, 3, 5),
        target=target,
        target_name="Tiny Llama",
        target_hash="0" * 32,
        target_vocabulary=VOCABULARY,
        context_length=128,
        acceptance=(0.5,),
        made="2026-01-01 00:00",
    )
    parts = target_parts([target])
    torch.manual_seed(2)
    network = HeadNetwork(
        sizes,
        scale=torch.linspace(0.5, 2.0, 3 * sizes.width),
        output=torch.from_numpy(parts.output[CHOSEN].astype(np.float32)),
        output_norm=torch.from_numpy(parts.output_norm),
    )
    arrays = network.matrices()
    file, head = workspace.folder / "made.gguf", workspace.folder / "made"
    write_gguf(file, arrays, numbers, facts, "q8_0")
    write_safetensors(head, arrays, numbers, facts)
    results = []
    for backend, files in ((llamacpp.BACKEND, (target, file)), (torch_backend.BACKEND, (folder, head))):
        model, made = loaded(backend, workspace, *files)
        assert (made.needs, made.window) == (("layer:1", "layer:3", "layer:5"), 1)
        results.append(drafted(model, made)[1])
        made.close()
        model.close()
    assert apart(results[1], results[0]) < CLOSE


# --- layers for multi-token prediction -----------------------------------------------------------------

BLOCK = {
    "attn_norm": "layers.0.input_layernorm",
    "attn_q": "layers.0.self_attn.q_proj",
    "attn_k": "layers.0.self_attn.k_proj",
    "attn_v": "layers.0.self_attn.v_proj",
    "attn_q_norm": "layers.0.self_attn.q_norm",
    "attn_k_norm": "layers.0.self_attn.k_norm",
    "attn_output": "layers.0.self_attn.o_proj",
    "post_attention_norm": "layers.0.post_attention_layernorm",
    "ffn_gate": "layers.0.mlp.gate_proj",
    "ffn_up": "layers.0.mlp.up_proj",
    "ffn_down": "layers.0.mlp.down_proj",
    "nextn.eh_proj": "fc",
    "nextn.enorm": "pre_fc_norm_embedding",
    "nextn.hnorm": "pre_fc_norm_hidden",
}


def torch_hybrid(folder: Path, source: Path) -> None:
    """Write a Qwen3.5 with the embeddings, the output and the extra layer of a GGUF. Its other layers are
    other ones: the extra layer gets hidden states from outside here. Its norms are stored less one.
    """
    torch_factory.make_model(
        folder,
        "qwen3_5",
        vocab_size=300,
        intermediate_size=128,
        head_dim=32,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    )
    made: dict[str, Any] = {}
    for stored in gguf.GGUFReader(source).tensors:
        values = torch.from_numpy(np.array(stored.data))
        name = stored.name.removesuffix(".weight")
        if values.ndim == 1:
            values = values - 1
        if name.startswith("blk.4."):
            made[f"mtp.{BLOCK[name.removeprefix('blk.4.')]}.weight"] = values
        elif name == "output_norm":
            made |= {"model.norm.weight": values, "mtp.norm.weight": values.clone()}
        elif name in ENDS:
            made["lm_head.weight" if name == "output" else "model.embed_tokens.weight"] = values
    torch_heads.change_tensors(folder, made)


def test_both_backends_draft_the_same_with_a_models_own_layer(workspace: Workspace) -> None:
    target = workspace.file(
        "agree-hybrid.gguf",
        lambda path: gguf_hybrids.tiny_qwen35(path, following=1, mixing=0.5, weight_type="f32"),
    )
    folder = workspace.file("agree-hybrid", lambda path: torch_hybrid(path, target))
    check_own_layers(workspace, target, folder)


def check_own_layers(workspace: Workspace, target: Path, folder: Path) -> None:
    """That both backends draft the same with a model's own layers, from llama.cpp's hidden states."""
    model, head = loaded(llamacpp.BACKEND, workspace, target, None)
    features, expected = drafted(model, head)
    other, theirs = loaded(torch_backend.BACKEND, workspace, folder, None)
    found = [theirs.forward([HeadRows(0, 1, TEXT[1:], features[:-1], 1)])[0].copy()]
    for i, token in enumerate(DRAFT):
        found.append(theirs.forward([HeadRows(0, len(TEXT) + i, [token], None, 1)])[0].copy())
    assert apart(np.stack(found), expected) < CLOSE
    assert np.array_equal(np.stack(found).argmax(1), expected.argmax(1))
    for each in (model, other):
        each.close()


def test_both_backends_draft_the_same_with_a_layer_for_each_token(workspace: Workspace) -> None:
    target = workspace.file("agree-mimo.gguf", lambda path: gguf_mimo.tiny_mimo2(path, mixing=0.5))
    folder = workspace.file("agree-mimo", lambda path: torch_heads.make_mimo_of(path, target))
    check_own_layers(workspace, target, folder)


@pytest.mark.parametrize(
    ("family", "convert"),
    [("glm4_moe", gguf_converted_heads.glm4_moe_of), ("deepseek_v3", gguf_converted_heads.deepseek_of)],
)
def test_both_backends_draft_the_same_with_a_layer_of_experts(
    workspace: Workspace, family: str, convert: Callable[[Path, Path], Path]
) -> None:
    folder = workspace.file(f"agree-{family}", lambda path: torch_heads.make_mtp(path, family))
    target = workspace.file(f"agree-{family}.gguf", lambda path: convert(path, folder))
    check_own_layers(workspace, target, folder)
