"""Same tokens whatever drafts, on the real default model: deep in the context, and in company."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from foredraft import Engine, SamplingParams
from foredraft.types import Completion
from matrix import matrix, nightly

pytestmark = pytest.mark.model

CONTEXT = 2048
TOKENS = 48

ROOMS = ("kitchen", "hall", "cellar", "attic", "garage", "library", "workshop", "pantry")
COLOURS = ("grey", "green", "white", "blue", "red", "brown")


def inventory(lines: int) -> str:
    """A list that repeats itself with variations, as lists do: what n-gram drafters live on."""
    return "\n".join(
        f"Item {number}: a {COLOURS[number % 6]} box in the {ROOMS[number % 8]}, weight {3 + number % 7} kg, "
        f"checked on day {1 + number % 28}."
        for number in range(1, lines + 1)
    )


LONG_PROMPTS = {
    "list": f"Inventory of the house.\n{inventory(42)}\nItem 43:",
    "prose": (
        "The ferry left the island before sunrise, and only the baker saw it go. He had been up for hours, "
        "as he was every night, and he counted the lamps along the pier while the bread was in the oven. "
        "There were nine of them. On some mornings the fog left him only four.\n"
    )
    * 17
    + "In one sentence, the baker",
}

DRAFTERS = [
    "ngram-mod:n=3,min=0,max=8",
    "ngram-cache",
    "suffix",
    "ngram-simple:n=3,m=8;ngram-map-k:n=2,m=4;ngram-map-k4v:n=3,m=6;recycle:min-p=0.1",
    "auto",
]


def params(temperature: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=11, max_tokens=TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(model_path: Path, shared_cache: Path) -> Iterator[Engine]:
    with Engine.load(
        model_path,
        speculate="off",
        threads=1,
        gpu_layers=0,
        sequences=4,
        context_length=CONTEXT,
        cache_dir=shared_cache,
        remember=False,
    ) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def plain(engine: Engine) -> dict[tuple[str, float], Completion]:
    """What every long prompt gives without speculation."""
    engine.set_speculation("off")
    return {
        (name, temperature): engine.generate(prompt, params(temperature))
        for name, prompt in LONG_PROMPTS.items()
        for temperature in (0.0, 0.8)
    }


def test_the_default_model_is_exact_on_a_processor(engine: Engine) -> None:
    capabilities = engine.model.capabilities
    assert capabilities.batch_invariant, capabilities.invariance_note
    assert capabilities.max_rows >= 16  # more where the time of a load sufficed to compare more
    assert engine.model.info.settings["kv_type"] in {"bf16/f16", "bf16/bf16"}


def test_the_prompts_are_past_a_thousand_tokens(plain: dict[tuple[str, float], Completion]) -> None:
    assert all(1024 < result.usage.prompt_tokens < CONTEXT - TOKENS for result in plain.values())
    assert all(len(result.tokens) == TOKENS for result in plain.values())
    assert plain["prose", 0.0].tokens != plain["prose", 0.8].tokens


@matrix(strength=1, drafter=DRAFTERS, temperature=[0.0, 0.8])
def test_deep_in_the_context_every_drafter_leaves_the_tokens_as_they_are(
    engine: Engine, plain: dict[tuple[str, float], Completion], drafter: str, temperature: float
) -> None:
    engine.set_speculation(drafter)
    drafted = 0
    for name, prompt in LONG_PROMPTS.items():
        result = engine.generate(prompt, params(temperature))
        assert result.tokens == plain[name, temperature].tokens
        assert result.text == plain[name, temperature].text
        assert result.speculation.exact
        drafted += result.timings.draft_n
    if drafter != "auto":
        assert drafted > 0


@matrix(strength=1, drafter=["suffix;ngram-simple:n=3,m=8", "auto"], temperature=[0.0, 0.8])
def test_in_company_the_tokens_are_those_of_each_alone(
    engine: Engine, plain: dict[tuple[str, float], Completion], drafter: str, temperature: float
) -> None:
    engine.set_speculation("off")
    short = "Here is a short list of colours: red, green, blue, red, green,"
    alone = engine.generate(short, params(temperature))
    prompts = [LONG_PROMPTS["list"], short, LONG_PROMPTS["prose"], short]
    expected = [plain["list", temperature], alone, plain["prose", temperature], alone]
    engine.set_speculation(drafter)
    results = engine.run([engine.add(prompt, params(temperature)) for prompt in prompts])
    assert [result.tokens for result in results] == [result.tokens for result in expected]


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=nightly), 0.8])
def test_the_model_drafting_for_itself_is_always_right(
    engine: Engine, plain: dict[tuple[str, float], Completion], model_path: Path, temperature: float
) -> None:
    engine.set_speculation(f"draft-model:model={model_path},max=5")
    assert engine.notes == ()
    result = engine.generate(LONG_PROMPTS["list"], params(temperature))
    assert result.tokens == plain["list", temperature].tokens
    assert result.timings.draft_n > TOKENS / 2
    assert result.speculation.acceptance_rate == 1.0
    engine.set_speculation("off")


@pytest.mark.parametrize("drafter", [pytest.param("off", marks=nightly), "suffix", "auto"])
def test_the_second_turn_of_a_chat_reuses_the_first_and_is_as_if_computed_afresh(
    engine: Engine, drafter: str
) -> None:
    engine.set_speculation(drafter)
    settings = SamplingParams(temperature=0.0, max_tokens=32)

    def chat(scope: str, messages: list[dict[str, str]]) -> Completion:
        [result] = engine.run([engine.add(messages, settings, scope=scope)])
        return result

    first = [{"role": "user", "content": f"Name three boxes of this list.\n{inventory(5)}"}]
    answer = chat(f"one {drafter}", first)
    second = [
        *first,
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": "Which of them is the heaviest?"},
    ]
    reused = chat(f"one {drafter}", second)
    fresh = chat(f"two {drafter}", second)
    assert reused.usage.cached_tokens >= answer.usage.prompt_tokens
    assert fresh.usage.cached_tokens == 0
    assert reused.tokens == fresh.tokens
    assert reused.text == fresh.text
