"""The files of a head: that llama.cpp computes from them what torch did, and what they say of themselves."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.config import ModelOptions
from foredraft.draft.make.sizes import Sizes
from foredraft.draft.make.torch_head import HeadNetwork
from foredraft.draft.make.weights import target_parts
from foredraft.draft.make.write import HeadFacts, rounded, write_gguf, write_safetensors
from foredraft.errors import UnsupportedModelError
from foredraft.registry import backend_for
from foredraft.types import HeadRows, Rows
from gguf_factory import tiny_llama

SIZES = Sizes(width=64, rank=32, ffn=96, vocabulary=100)
VOCABULARY = np.sort(np.random.default_rng(3).choice(384, 100, replace=False)).astype(np.int64)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("target") / "tiny.gguf", layers=6)


@pytest.fixture
def facts(target: Path) -> HeadFacts:
    return HeadFacts(
        name="Tiny head",
        sizes=SIZES,
        layers=(1, 3, 5),
        target=target,
        target_name="Tiny Llama",
        target_hash="0123456789abcdef" * 2,
        target_vocabulary=384,
        context_length=512,
        acceptance=(0.5, 0.25, 0.125),
        made="2026-01-01 00:00",
    )


@pytest.fixture
def network(target: Path) -> HeadNetwork:
    torch.manual_seed(2)
    parts = target_parts([target])
    scale = torch.linspace(0.5, 2.0, 3 * SIZES.width)
    output = torch.from_numpy(parts.output[VOCABULARY].astype(np.float32))
    network = HeadNetwork(SIZES, scale=scale, output=output, output_norm=torch.from_numpy(parts.output_norm))
    with torch.no_grad():
        for parameter in network.trained():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def test_llama_cpp_computes_what_torch_did(
    target: Path, network: HeadNetwork, facts: HeadFacts, tmp_path: Path
) -> None:
    """Logits of the first step, from the target's features, and of further ones from the head's own."""
    arrays = network.matrices()
    file = tmp_path / "head.gguf"
    write_gguf(file, arrays, VOCABULARY, facts, "q8_0")
    network.read(rounded(arrays, "q8_0"))
    watch = tuple(f"layer:{number}" for number in facts.layers)
    assert backend_for(target).features_for(target, file) == watch
    options = ModelOptions(context_length=64, sequences=1, threads=1, probe=False, watch=watch)
    model = backend_for(target).load(target, options)
    tokens = [int(token) for token in np.random.default_rng(1).integers(260, 384, 12)]
    try:
        model.forward([Rows(0, 0, tokens, 1)])
        features = model.features().copy()
        head = model.load_head(file, sequences=1)
        assert head.window == 1
        found = [head.forward([HeadRows(0, 1, tokens[1:], features[:-1], len(tokens) - 1)]).copy()]
        for step, token in enumerate((300, 301)):
            found.append(head.forward([HeadRows(0, len(tokens) + step, (token,), None, 1)]).copy())
        head.close()
    finally:
        model.close()
    embeddings = torch.from_numpy(target_parts([target]).embeddings.astype(np.float32))
    with torch.no_grad():
        states = network.step(embeddings[tokens[1:]], network.fuse(torch.from_numpy(features[:-1])))
        second = network.step(embeddings[[300]], states[-1:])
        third = network.step(embeddings[[301]], second)
    for state, logits in zip((states, second, third), found, strict=True):
        wanted = network.logits(state).detach().numpy()
        assert np.isneginf(np.delete(logits, VOCABULARY, axis=1)).all()
        spread = wanted.std()
        assert np.abs(logits[:, VOCABULARY] - wanted).max() < 0.06 * spread
        assert np.corrcoef(logits[:, VOCABULARY].ravel(), wanted.ravel())[0, 1] > 0.999


def test_the_file_says_what_it_is_of(network: HeadNetwork, facts: HeadFacts, tmp_path: Path) -> None:
    file = tmp_path / "head.gguf"
    write_gguf(file, network.matrices(), VOCABULARY, facts, "q4_1")
    summary = read_gguf(file)
    assert summary.architecture == "eagle3"
    assert summary.metadata["foredraft.target_hash"] == facts.target_hash
    assert summary.metadata["foredraft.window"] == 1
    assert not list(tmp_path.glob(".*"))
    names = {tensor.name: tensor.type for tensor in summary.tensors}
    assert "token_embd.weight" not in names
    assert names["fc.weight"] == names["output.weight"] == "q4_1"


def test_the_smaller_format_is_smaller(network: HeadNetwork, facts: HeadFacts, tmp_path: Path) -> None:
    sizes = {}
    for kind in ("q4_1", "q8_0"):
        write_gguf(tmp_path / kind, network.matrices(), VOCABULARY, facts, kind)
        sizes[kind] = (tmp_path / kind).stat().st_size
    assert sizes["q4_1"] < 0.8 * sizes["q8_0"]


def test_rounding_is_that_of_the_file(network: HeadNetwork, facts: HeadFacts, tmp_path: Path) -> None:
    arrays = network.matrices()
    write_gguf(tmp_path / "head.gguf", arrays, VOCABULARY, facts, "q4_1")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "head.gguf").tensors}
    for name, array in rounded(arrays, "q4_1").items():
        tensor = stored[name]
        assert np.array_equal(gguf.dequantize(tensor.data, tensor.tensor_type).reshape(array.shape), array), (
            name
        )


def test_rounding_one_format_leaves_the_weights_for_the_next(network: HeadNetwork) -> None:
    """Matrices are copies: those of 8 bits are not of weights that were rounded to 4 before."""
    arrays = network.matrices()
    before = {name: array.copy() for name, array in arrays.items()}
    network.read(rounded(arrays, "q4_1"))
    assert all(np.array_equal(arrays[name], array) for name, array in before.items())
    network.read(before)  # it is shared by these tests


def test_a_file_in_place_stays_whole_if_writing_fails(
    network: HeadNetwork, facts: HeadFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "head.gguf"
    file.write_bytes(b"before")

    def fail(self: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", fail)
    with pytest.raises(OSError, match="no space"):
        write_gguf(file, network.matrices(), VOCABULARY, facts, "q8_0")
    assert file.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["head.gguf"]


def test_speculators_form_is_read_back(network: HeadNetwork, facts: HeadFacts, tmp_path: Path) -> None:
    from foredraft.backends.torch.head_files import read_eagle3

    write_safetensors(tmp_path / "head", network.matrices(), VOCABULARY, facts)
    found = read_eagle3(tmp_path / "head", layers=6)
    assert found.layers == facts.layers
    assert found.window == 1
    assert found.normed_features
    assert not found.normed_residual
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["draft_vocab_size"] == 100


def test_a_target_without_embeddings_is_refused(tmp_path: Path) -> None:
    from gguf_factory import vocab_only

    with pytest.raises(UnsupportedModelError, match=r"token_embd\.weight"):
        target_parts([vocab_only(tmp_path / "vocabulary.gguf")])
