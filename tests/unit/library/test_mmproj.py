"""Which file a GGUF sees with: by names and folders, and where other programs have put it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from foredraft.config import OtherPrograms
from foredraft.library import list_models
from foredraft.library.mmproj import find_mmproj
from other_programs import cached, llamacpp, ollama, put

LIBRARY = "registry.ollama.ai/library"
QWEN = "Qwen2.5-VL-3B-Q4_K_M.gguf"
TWO = (QWEN, "gemma-3-4b-it-Q4_0.gguf")
OWN = "mmproj-Qwen2.5-VL-3B-f16.gguf"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ((QWEN,), None),
        ((QWEN, "mmproj-F16.gguf"), "mmproj-F16.gguf"),
        ((*TWO, "mmproj-F16.gguf"), None),
        ((*TWO, OWN), OWN),
        ((*TWO[::-1], OWN), None),
        ((QWEN, "Qwen2.5-VL-3B-UD-IQ1_S.gguf", "mmproj-F16.gguf"), "mmproj-F16.gguf"),
        ((QWEN, "Qwen2.5-VL-3B-MXFP4_MOE.gguf", "mmproj-F16.gguf"), "mmproj-F16.gguf"),
        ((QWEN, "imatrix.gguf", "Qwen2.5-VL-3B-eagle3.gguf", "mmproj-F16.gguf"), "mmproj-F16.gguf"),
        (("big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "mmproj-BF16.gguf"), "mmproj-BF16.gguf"),
        (("Q8_0/big-Q8_0-00001-of-00002.gguf", "mmproj-BF16.gguf"), "mmproj-BF16.gguf"),
        (("Q8_0/big-Q8_0.gguf", "Q8_0/mmproj-F32.gguf", "mmproj-F16.gguf"), "mmproj-F32.gguf"),
        (("big/big-Q8_0.gguf", "mmproj-BF16.gguf"), None),
    ],
)
def test_by_names(tmp_path: Path, files: tuple[str, ...], found: str | None) -> None:
    for name in files:
        put(tmp_path / name, b"")
    path = find_mmproj(tmp_path / files[0])
    assert (None if path is None else path.name) == found


@pytest.mark.parametrize(
    ("model", "eyes", "found"),
    [
        (
            "Qwen3-VL-4B-Thinking-Q4_K_M",
            ["mmproj-Qwen3-VL-4B-F16", "mmproj-Qwen3-VL-4B-Thinking-BF16"],
            "mmproj-Qwen3-VL-4B-Thinking-BF16",
        ),
        (
            "gemma-3-4b-it-Q4_0",
            ["mmproj-gemma-3-4b-f16", "mmproj-gemma-3-4b-it-q8_0"],
            "mmproj-gemma-3-4b-it-q8_0",
        ),
        ("gemma-3-4b-Q4_0", ["mmproj-gemma-3-4b-it-f16"], "mmproj-gemma-3-4b-it-f16"),
        ("Qwen2.5-VL-7B-Q4_0", ["Qwen2.5VL.mmproj-f32", "mmproj-Qwen2.5-VL-f16"], "mmproj-Qwen2.5-VL-f16"),
        (
            "Qwen2.5-VL-7B-Q4_0",
            ["mmproj-Qwen2.5VL-7B-fp16", "mmproj-Qwen2.5-VL-7B-f32"],
            "mmproj-Qwen2.5VL-7B-fp16",
        ),
        ("InternVL3-14B-Q8_0", ["mmproj-InternVL3-1-F16"], None),
        ("InternVL3-14B-Q8_0", ["mmproj-InternVL-F16"], None),
        ("qwen2.5-vl-7b-q4_0", ["mmproj-qwen2-vl-f16"], None),
        ("gemma-3-12b-it-Q4_0", ["mmproj-gemma-31-f16"], None),
        (
            "SmolVLM2-2.2B-Q8_0",
            ["mmproj-SmolVLM-F16", "mmproj-SmolVLM2-2.2B-fp16"],
            "mmproj-SmolVLM2-2.2B-fp16",
        ),
    ],
)
def test_the_longest_name_of_whole_words(
    tmp_path: Path, model: str, eyes: list[str], found: str | None
) -> None:
    put(tmp_path / "another-Q8_0.gguf")
    for name in eyes:
        put(tmp_path / f"{name}.gguf")
    path = find_mmproj(put(tmp_path / f"{model}.gguf"))
    assert (None if path is None else path.stem) == found


def test_fp16_and_f16_are_the_same_models(tmp_path: Path) -> None:
    for kind in ("fp16", "FP32", "Q8_0"):
        put(tmp_path / f"tiny-{kind}.gguf")
    eyes = put(tmp_path / "mmproj-fp16.gguf")
    put(tmp_path / "mmproj-Q8_0.gguf")
    assert find_mmproj(tmp_path / "tiny-Q8_0.gguf") == eyes


def test_of_several_the_one_of_sixteen_bits(tmp_path: Path) -> None:
    model = put(tmp_path / "gemma-3-4b-it-Q4_0.gguf")
    order = ["odd", "f32", "Q8_0", "BF16", "f16"]
    for kind in order:
        put(tmp_path / f"mmproj-model-{kind}.gguf")
        assert find_mmproj(model) == tmp_path / f"mmproj-model-{kind}.gguf"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_ollamas_projector(tmp_path: Path) -> None:
    blind = ollama(tmp_path, f"{LIBRARY}/llama3.2/3b", b"GGUF llama")
    model = ollama(tmp_path, f"{LIBRARY}/llava/7b", b"GGUF llava")
    projector = put(tmp_path / "blobs" / f"sha256-{_digest(b'GGUF eyes')}", b"GGUF eyes")
    manifest = tmp_path / "manifests" / LIBRARY / "llava/7b"
    values = json.loads(manifest.read_bytes())
    values["layers"] += [
        "no layer",
        {"mediaType": "application/vnd.ollama.image.projector", "digest": f"sha256:{_digest(b'GGUF eyes')}"},
    ]
    manifest.write_text(json.dumps(values))
    put(tmp_path / "manifests" / LIBRARY / "damaged/1b", b"{")
    assert find_mmproj(model) == projector
    assert find_mmproj(blind) is None
    projector.unlink()
    assert find_mmproj(model) is None


def test_beside_models_of_lm_studio_and_the_hubs_library(tmp_path: Path) -> None:
    studio = tmp_path / "lmstudio/publisher/Tiny-GGUF"
    put(studio / "Tiny-Q4_0.gguf")
    seen = [put(studio / "mmproj-model-f16.gguf")]
    snapshot = cached(
        tmp_path / "hub", "o/Seeing-GGUF", {"S-Q8_0.gguf": b"model", "mmproj-F16.gguf": b"eyes"}
    )
    seen.append(snapshot / "mmproj-F16.gguf")
    places = OtherPrograms(lmstudio=(tmp_path / "lmstudio",), huggingface=(tmp_path / "hub",))
    found = [model for model in list_models(tmp_path / "none", places) if model.source != "bundled"]
    assert [find_mmproj(model.path) for model in found] == seen


def test_llamacpps_cache(tmp_path: Path) -> None:
    model = llamacpp(tmp_path, "o/Tiny-GGUF", "q/Tiny-Q4_0.gguf", "mmproj-F16.gguf")
    llamacpp(tmp_path, "o/Other-GGUF", "Other-Q8_0.gguf")
    llamacpp(tmp_path, "o/Gone-GGUF", "Gone-Q8_0.gguf").unlink()
    put(tmp_path / "manifest=o=Broken-GGUF=latest.json", b"[")
    put(tmp_path / "unknown.gguf")
    assert model.name == "o_Tiny-GGUF_q_Tiny-Q4_0.gguf"
    places = OtherPrograms(llamacpp=(tmp_path,))
    found = [one for one in list_models(tmp_path / "none", places) if one.source == "llamacpp"]
    assert {one.name: find_mmproj(one.path) for one in found} == {
        "o/Other-GGUF:Q8_0": None,
        "o/Tiny-GGUF:Q4_0": tmp_path / "o_Tiny-GGUF_mmproj-F16.gguf",
    }
