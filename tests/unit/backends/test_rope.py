"""Scaling of positions: what a file says, what a user wants, and that both backends compute the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import embedder_factory
import gguf_factory
from foredraft.backends.llamacpp import LlamaCppBackend
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.backends.llamacpp.rope import positions_in
from foredraft.backends.rope import Positions, positions_of_parameters, settle
from foredraft.config import ModelOptions, Rope
from foredraft.errors import ConfigError, ContextLengthError, ModelFormatError
from foredraft.types import Rows

PLAIN = Positions("none", original=512, trained=512)
YARN = Positions("yarn", 4.0, 512, 2048)
TEXT = [(31 * number + 7) % 300 for number in range(40)]


def written(
    path: Path, kind: gguf.RopeScalingType, factor: float, original: int = 0, trained: int = 512
) -> Path:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(kind)
        writer.add_rope_scaling_factor(factor)
        if original:
            writer.add_rope_scaling_orig_ctx_len(original)

    return gguf_factory.tiny_llama(path, ctx_train=trained, edit=edit)


def load(path: Path, length: int = 0, **rope: Any) -> Any:
    options = ModelOptions(context_length=length, rope=Rope(**rope), probe=False, threads=1, kv_type="f32")
    return LlamaCppBackend().load(path, options)


def logits(path: Path, length: int = 0, **rope: Any) -> np.ndarray:
    model = load(path, length, **rope)
    try:
        return np.array(model.forward([Rows(0, 0, TEXT, len(TEXT))]))
    finally:
        model.close()


# --- what a file says ----------------------------------------------------------------------------------


def test_a_file_with_yarn_reaches_further_than_its_texts(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", gguf.RopeScalingType.YARN, 4.0, original=512, trained=2048)
    assert positions_in(read_gguf(path)) == YARN
    assert (YARN.reach, str(YARN)) == (2048, "YaRN × 4 from 512 tokens (the file's)")
    model = load(path, 2048)
    assert model.info.context_length == 2048
    assert model.info.settings["positions"] == str(YARN)
    model.close()


def test_a_file_that_states_the_length_of_its_texts_only(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", gguf.RopeScalingType.YARN, 4.0, original=512, trained=512)
    assert positions_in(read_gguf(path)).reach == 2048


def test_no_scaling_is_not_mentioned(tmp_path: Path) -> None:
    assert positions_in(read_gguf(gguf_factory.tiny_llama(tmp_path / "m.gguf"))) == PLAIN
    assert str(PLAIN) == ""


@pytest.mark.parametrize(
    ("rope", "found"),
    [
        ({}, Positions("none", original=4096, trained=4096)),
        ({"rope_type": "default", "rope_theta": 1e4}, Positions("none", original=4096, trained=4096)),
        ({"type": "linear", "factor": 8.0}, Positions("linear", 8.0, 512, 4096)),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
            Positions("yarn", 4.0, 2048, 4096),
        ),
        ({"rope_type": "llama3", "factor": 8.0}, Positions("llama3", 8.0, 4096, 4096)),
    ],
)
def test_what_transformers_configurations_say(rope: dict[str, Any], found: Positions) -> None:
    assert positions_of_parameters(rope, 4096) == found


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
@pytest.mark.parametrize("factor", [float("inf"), float("nan"), 1e308, 1e-308, -4.0, "many", [4]])
def test_an_absurd_factor_in_a_file_is_an_error(kind: str, factor: Any) -> None:
    with pytest.raises(ModelFormatError, match="factor"):
        positions_of_parameters({"rope_type": kind, "factor": factor}, 4096)


@pytest.mark.parametrize("original", [float("inf"), float("nan"), -1, 2**31, "long", [4096]])
def test_an_absurd_length_in_a_file_is_an_error(original: Any) -> None:
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": original}
    with pytest.raises(ModelFormatError, match="length"):
        positions_of_parameters(rope, 4096)


@pytest.mark.parametrize("factor", [float("inf"), float("nan"), -2.0, 1e30])
def test_an_absurd_factor_in_a_gguf_is_an_error(tmp_path: Path, factor: float) -> None:
    path = written(tmp_path / "m.gguf", gguf.RopeScalingType.YARN, factor, original=512, trained=2048)
    with pytest.raises(ModelFormatError, match="factor"):
        load(path, 512)


# --- what a user wants ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "wanted", "length", "factor", "reach"),
    [
        (PLAIN, Rope(scaling="yarn"), 2048, 4.0, 2048),
        (PLAIN, Rope(scaling="linear"), 1024, 2.0, 1024),
        (PLAIN, Rope(scaling="yarn", scale=8.0), 0, 8.0, 4096),
        (PLAIN, Rope(scaling="yarn"), 256, 1.0, 512),
        (PLAIN, Rope(scaling="yarn", original_context=256), 1024, 4.0, 1024),
        (YARN, Rope(scaling="yarn"), 1024, 4.0, 2048),
        (YARN, Rope(scaling="yarn"), 4096, 8.0, 4096),
        (YARN, Rope(scale=8.0), 4096, 8.0, 4096),
        (YARN, Rope(scaling="none"), 0, 1.0, 512),
        (PLAIN, Rope(freq_base=1e6), 4096, 1.0, 512),
    ],
)
def test_the_factor_follows_from_the_context(
    file: Positions, wanted: Rope, length: int, factor: float, reach: int
) -> None:
    found = settle("m", file, wanted, length)
    assert (found.factor, found.reach, found.asked) == (factor, reach, True)


@pytest.mark.parametrize(
    ("file", "wanted", "length", "says"),
    [
        (PLAIN, Rope(scaling="yarn"), 0, "not said how far"),
        (PLAIN, Rope(scale=4.0), 0, "the file has none"),
        (PLAIN, Rope(scaling="none", scale=4.0), 0, "rope_scaling='none' has none"),
        (PLAIN, Rope(scaling="linear", original_context=128), 1024, "is about YaRN"),
        (Positions("yarn", 1.0), Rope(scaling="yarn", scale=2.0), 0, "does not say which length"),
        (Positions("llama3", 8.0, 512, 4096), Rope(scaling="yarn"), 8192, "a way of its own"),
        (Positions("", trained=512), Rope(scaling="yarn"), 1024, "no rotary positions"),
    ],
)
def test_what_does_not_fit_says_what_to_do(file: Positions, wanted: Rope, length: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        settle("m", file, wanted, length)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("file", "wanted", "length", "hint"),
    [
        (PLAIN, Rope(), 513, "at most 512, or scale its positions with YaRN: --rope-scaling yarn"),
        (YARN, Rope(), 2049, "at most 2048"),
        (PLAIN, Rope(scaling="yarn", scale=2.0), 1025, "at most 1024, or leave --rope-scale (rope_scale)"),
        (YARN, Rope(scaling="none"), 513, "at most 512"),
    ],
)
def test_a_context_that_positions_do_not_reach(file: Positions, wanted: Rope, length: int, hint: str) -> None:
    with pytest.raises(ContextLengthError) as caught:
        settle("m", file, wanted, length)
    assert hint in (caught.value.hint or "")


# --- what is computed ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (gguf.RopeScalingType.YARN, {"scaling": "yarn"}),
        (gguf.RopeScalingType.LINEAR, {"scaling": "linear"}),
    ],
)
def test_asked_for_is_the_same_as_in_the_file(tmp_path: Path, kind: Any, wanted: dict[str, Any]) -> None:
    scaled = written(tmp_path / "scaled.gguf", kind, 4.0, original=512, trained=2048)
    plain = gguf_factory.tiny_llama(tmp_path / "plain.gguf", ctx_train=512)
    expected = logits(scaled, 2048)
    np.testing.assert_array_equal(logits(plain, 2048, **wanted), expected)
    np.testing.assert_array_equal(logits(scaled, 512, scaling="none"), logits(plain, 512))
    assert not np.array_equal(logits(plain, 512), expected)


def test_another_base_is_computed(tmp_path: Path) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "m.gguf")
    assert not np.array_equal(logits(path, freq_base=1e6), logits(path))


def test_what_is_kept_depends_on_the_scaling(tmp_path: Path) -> None:
    from foredraft.engine.profile_store import key_of

    path = gguf_factory.tiny_llama(tmp_path / "m.gguf")
    asked: tuple[dict[str, Any], ...] = ({}, {"scaling": "yarn", "scale": 2.0}, {"freq_base": 1e6})
    keys, profiles = set(), set()
    for rope in asked:
        model = load(path, 512, **rope)
        keys.add(model.capabilities.snapshot_key)
        profiles.add(key_of(model.info))
        model.close()
    assert len(keys) == len(profiles) == len(asked)


def test_both_backends_compute_the_same(tmp_path: Path, in_torch: Callable[..., Any]) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "m.gguf", mixing=1.0)
    plain = logits(path, 512)
    for rope in ({}, {"scaling": "yarn"}, {"scaling": "linear"}, {"freq_base": 500.0}):
        length = 2048 if rope else 512
        found, expected = in_torch(path, length, **rope), logits(path, length, **rope)
        np.testing.assert_allclose(found, expected, atol=0.04)
        assert not rope or np.abs(expected - plain).max() > 8 * np.abs(found - expected).max()


@pytest.fixture
def in_torch() -> Callable[..., np.ndarray]:
    loading = pytest.importorskip("foredraft.backends.torch.loading")

    def compute(path: Path, length: int, **rope: Any) -> np.ndarray:
        options = ModelOptions(context_length=length, rope=Rope(**rope), probe=False, threads=1, dtype="fp32")
        model = loading.load_model(path, options)
        assert model.info.settings["forward"] == "lean"
        try:
            return np.array(model.forward([Rows(0, 0, TEXT, len(TEXT))]))
        finally:
            model.close()

    return compute


# --- learned positions ---------------------------------------------------------------------------------


def test_learned_positions_cannot_be_scaled(tmp_path: Path) -> None:
    """A BERT's positions are rows of a table: llama.cpp ends the process at the first one behind it."""
    path = embedder_factory.bert_gguf(tmp_path / "bert.gguf", embedder_factory.bert())
    found = positions_in(read_gguf(path))
    assert (found.kind, found.reach, found.scalable) == ("", 128, False)
    for rope in (Rope(scaling="yarn"), Rope(freq_base=20_000.0)):
        options = ModelOptions(context_length=512, rope=rope, threads=1, cache_dir=tmp_path)
        with pytest.raises(ConfigError, match="no rotary positions"):
            LlamaCppBackend().load_embedder(path, options, None)
