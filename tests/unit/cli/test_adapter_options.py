"""Adapters at the command line: --lora, and `foredraft models inspect`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gguf_adapters
import gguf_factory
from command_line import Command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    base = gguf_factory.tiny_llama(folder / "base.gguf", weight_type="q8_0", mixing=0.5)
    gguf_adapters.lora(folder / "one.gguf", base, rank=6)
    peft = folder / "peft"
    peft.mkdir()
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}
    (peft / "adapter_config.json").write_text(json.dumps(config))
    (peft / "adapter_model.safetensors").write_bytes(b"")
    return folder


def answer(foredraft: Command, folder: Path, *lora: str) -> str:
    words = ["run", "-m", folder / "base.gguf", "--raw", "-p", "abc", "-n", 16, "--temp", 0, "-t", 1]
    for text in lora:
        words += ["--lora", text]
    result = foredraft(*words, "--no-remember")
    assert result.code == 0, result.err
    return result.out


def test_run_answers_with_it(foredraft: Command, folder: Path) -> None:
    one = folder / "one.gguf"
    plain, adapted = answer(foredraft, folder), answer(foredraft, folder, str(one))
    assert plain != adapted
    assert answer(foredraft, folder, f"{one}:0") == plain
    assert answer(foredraft, folder, f"{one}:0.5", f"{one}:0.5") != plain


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ("gone.gguf", "There is no adapter"),
        ("one.gguf:much", "not an adapter scale"),
        ("base.gguf", "not a LoRA adapter"),
        ("peft", "convert_lora_to_gguf.py"),
    ],
)
def test_what_cannot_be_used_is_said(lora: str, said: str, foredraft: Command, folder: Path) -> None:
    result = foredraft("run", "-m", folder / "base.gguf", "--raw", "-p", "a", "--lora", str(folder / lora))
    assert result.code == 2
    assert said in result.err


def test_an_adapter_is_no_model(foredraft: Command, folder: Path) -> None:
    result = foredraft("run", "-m", str(folder / "one.gguf"), "hello")
    assert result.code == 2
    assert "is a LoRA adapter" in result.err
    assert "--lora" in result.err


def test_inspect_shows_an_adapter(foredraft: Command, folder: Path) -> None:
    shown = foredraft("models", "inspect", str(folder / "one.gguf")).out
    assert "LoRA" in shown
    assert "14 of the model's" in shown
    shown = foredraft("models", "inspect", str(folder / "peft")).out
    assert "q_proj, v_proj" in shown
    assert json.loads(foredraft("models", "inspect", str(folder / "peft"), "--json").out)["rank"] == "8"
