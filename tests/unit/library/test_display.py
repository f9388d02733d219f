"""What a model is called where its file says nothing of use."""

from __future__ import annotations

import pytest

from foredraft.library.display import display_name

STEM = "SmolLM2-135M-Instruct.Q4_1"


@pytest.mark.parametrize(
    "stated",
    [
        "",
        "   ",
        "model",
        "Model",
        "GGML Model",
        "model.safetensors",
        "pytorch_model.bin",
        "hf_model",
        "Merged Model",
        "snapshots",
        "output",
        "checkpoint-1200",
        "Checkpoint 1200",
        "unknown",
        "None",
        "tmp",
        "tmpa8f_2kx1",
        "Tmp1Ayt3Q9X",
        "/tmp/tmpq1w2e3/model",
        "./models/final",
        "../out",
        "~/models/x",
        "C:\\models\\x",
        "data/runs/llama",
        "12fd25f77366fa6b3b4b768ec3050bf629380bac",
        "12Fd25F77366Fa6B3B4B768Ec3050Bf629380Bac",
        "sha256:12fd25f77366fa6b3b4b768ec3050bf629380bac",
        "Smollm2 135M 8k Lc100K Mix1 Ep2",
        "llama-sft-step4000",
        "123",
        "---",
        "a\nb",
    ],
)
def test_noise_gives_way_to_the_files_name(stated: str) -> None:
    assert display_name(stated, STEM) == STEM


@pytest.mark.parametrize(
    "stated",
    [
        "Qwen2.5 0.5B Instruct",
        "Mixtral-8x7B-Instruct-v0.1",
        "meta-llama/Llama-3.2-1B",
        "gemma-3-270m-it",
        "Tiny Llama",
        "GPT-2",
        "SmolLM3",
        "DeepSeek R1 0528 Qwen3 8B",
        "Phi 4 mini",
        "通义千问",
        "Falcon H1",
        "deadbeef",
        "OLMo 2 1124 7B",
    ],
)
def test_a_name_stays(stated: str) -> None:
    assert display_name(f" {stated} ", STEM) == stated
