"""What a model's files recommend for sampling, from either format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foredraft.library.recommended import recommended_in_folder, recommended_in_gguf


def test_a_ggufs_keys_are_those_of_llama_cpp() -> None:
    metadata = {
        "general.sampling.temp": "0.600000",
        "general.sampling.top_k": "20",
        "general.sampling.top_p": "0.949999988079071",
        "general.sampling.min_p": "0.0",
        "general.sampling.penalty_repeat": "1.05",
        "general.sampling.mirostat": "1",
    }
    found = recommended_in_gguf(metadata.get)
    assert found == {
        "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.05,
    }  # fmt: skip
    assert isinstance(found["top_k"], int)
    assert recommended_in_gguf(lambda _: None) == {}


def test_a_folders_are_those_of_transformers(tmp_path: Path) -> None:
    assert recommended_in_folder(tmp_path) == {}
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"temperature": 0.6, "top_p": 0.9, "eos_token_id": 2, "max_length": 4096}))
    assert recommended_in_folder(tmp_path) == {"temperature": 0.6, "top_p": 0.9}
    file.write_text("{")
    assert recommended_in_folder(tmp_path) == {}


@pytest.mark.parametrize(
    "value", [None, True, "hot", "nan", "inf", [0.7], {"x": 1}, -1, 1e9, 10**400, "0x10", ""]
)
def test_nonsense_in_a_file_recommends_nothing(tmp_path: Path, value: object) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": value, "top_p": 0.9}))
    assert recommended_in_folder(tmp_path) == {"top_p": 0.9}
