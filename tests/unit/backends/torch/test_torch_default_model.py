"""The default model's weights through torch: transformers' text, exact, and the vocabulary llama.cpp sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from foredraft import Engine, SamplingParams
from foredraft.backends.llamacpp import BACKEND as LLAMA_CPP
from foredraft.config import ModelOptions, Stage
from foredraft.protocols import Model
from foredraft.registry import create_drafter
from foredraft.testing import drafter_context
from matrix import nightly
from torch_cases import greedy, load

pytestmark = [pytest.mark.model, nightly]

PROMPTS = (
    "The capital of France is",
    "Here is a short list of colours: red, green, blue, red, green,",
    "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n",
)


@pytest.fixture(scope="module")
def model(model_path: Path) -> Iterator[Model]:
    loaded = load(model_path, context_length=256, sequences=2)
    yield loaded
    loaded.close()


def test_its_text_is_that_of_generate_with_drafts_and_without(model: Model, model_path: Path) -> None:
    assert model.info.settings["forward"] == "lean"
    source = transformers.AutoModelForCausalLM.from_pretrained(
        model_path.parent, gguf_file=model_path.name, dtype=torch.float32
    )
    prompts = [model.tokenizer.encode(text) for text in PROMPTS]
    expected = [greedy(source, prompt, 24) for prompt in prompts]
    context = drafter_context(model)
    drafters = [create_drafter(Stage(name), context) for name in ("suffix", "recycle")]
    engine = Engine(model, drafters=drafters)
    results = engine.run([engine.add(prompt, SamplingParams(max_tokens=24)) for prompt in prompts[:2]])
    results.append(engine.generate(prompts[2], max_tokens=24))
    assert [list(result.tokens) for result in results] == expected
    assert sum(result.timings.draft_n for result in results) > 0


def test_token_ids_mean_what_they_mean_to_llama_cpp(model: Model, model_path: Path) -> None:
    other = LLAMA_CPP.load(model_path, ModelOptions(threads=1, gpu_layers=0, probe=False, context_length=64))
    try:
        assert model.info.vocab_hash == other.info.vocab_hash
        text = "Grüße, <|im_start|> 模型\n\tx = 10"
        for special in (False, True):
            assert model.tokenizer.encode(text, special=special) == other.tokenizer.encode(
                text, special=special
            )
        tokens = range(0, model.info.vocab_size, 7)
        assert [model.tokenizer.token_bytes(token) for token in tokens] == [
            other.tokenizer.token_bytes(token) for token in tokens
        ]
        messages = [{"role": "user", "content": "Hi"}]
        assert model.tokenizer.apply_chat_template(messages) == other.tokenizer.apply_chat_template(messages)
    finally:
        other.close()
