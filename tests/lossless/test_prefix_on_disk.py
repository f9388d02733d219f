"""Same tokens from KV cells that were on the disk, on the real default model, past 512 cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft import Engine, SamplingParams
from foredraft.types import Completion

pytestmark = pytest.mark.model

ROOMS = ("kitchen", "hall", "cellar", "attic", "garage", "library")
STORY = "Inventory of the house.\n" + "\n".join(
    f"Item {number}: a box in the {ROOMS[number % 6]}, weight {3 + number % 7} kg." for number in range(1, 36)
)
OTHER = "The ferry left the island before sunrise, and only the baker saw it go. " * 6
QUESTIONS = (f"{STORY}\nItem 36:", f"{STORY}\nIn one sentence, the heaviest box")


def ask(engine: Engine, prompt: str, temperature: float) -> Completion:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=32, ignore_eos=True, logprobs=2)
    return engine.generate(prompt, params)


def load(path: Path, shared_cache: Path, gigabytes: float, speculate: str) -> Engine:
    return Engine.load(
        path,
        speculate=speculate,
        threads=1,
        gpu_layers=0,
        context_length=1024,
        cache_dir=shared_cache,
        prefix_cache_gb=gigabytes,
    )


def test_what_was_kept_on_the_disk_goes_on_as_if_it_had_been_computed(
    model_path: Path, shared_cache: Path
) -> None:
    with load(model_path, shared_cache, 0, "off") as engine:
        plain = [ask(engine, question, 0.8 * n) for n, question in enumerate(QUESTIONS)]
    with load(model_path, shared_cache, 1, "off") as engine:
        ask(engine, STORY, 0)
    with load(model_path, shared_cache, 1, "suffix;ngram-simple:n=3,m=8") as engine:
        kept = []
        for n, question in enumerate(QUESTIONS):
            kept.append(ask(engine, question, 0.8 * n))
            ask(engine, OTHER, 0)  # which takes the only sequence
    assert [answer.tokens for answer in kept] == [answer.tokens for answer in plain]
    assert [answer.logprobs for answer in kept] == [answer.logprobs for answer in plain]
    assert min(answer.usage.cached_tokens for answer in kept) > 512
    assert sum(answer.timings.draft_n for answer in kept) > 0
    assert kept[0].timings.prompt_n < 32
