"""The first promise under a constraint: the same answer whatever drafts, and always one that is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from constrained_drafters import PLANNERS, STAGES, Drafters
from foredraft import Constraint, Engine, SamplingParams
from foredraft.config import Stage
from foredraft.errors import RequestError
from foredraft.testing import FakeModel, ScriptedDrafter, assert_lossless, markov_logits
from foredraft.types import Completion, FinishReason, Logits, VerifyRule
from matrix import matrix

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "pattern": "^[a-z ]{2,12}$"},
        "kind": {"enum": ["international", "internal", "domestic"]},
        "values": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 40}, "maxItems": 6},
        "good": {"type": "boolean"},
    },
    "required": ["first_name", "kind", "values", "good"],
    "additionalProperties": False,
}
CONSTRAINTS = {
    "schema": Constraint("json_schema", json.dumps(SCHEMA)),
    "regex": Constraint(
        "regex", r"(the (quick|quiet|brown) (fox|dog) (and|or) ){2,6}(no|every) other (one|two)\."
    ),
    "grammar": Constraint("grammar", 'root ::= item ("; " item){3,5} "."\nitem ::= [a-e] " = " [0-9]{1,4}'),
}
PROMPTS = [
    list(b'[{"first_name": "anna", "kind": "internal", "values": [1, 2], "good": true}, '),
    list(b"the quick fox and the quiet dog or the brown fox: "),
    list(b"a = 12; b = 12; a = 12; b = 12; "),
]
SETTINGS = {
    "greedy": SamplingParams(max_tokens=400),
    "warm": SamplingParams(temperature=0.9, seed=5, max_tokens=400),
    "truncated": SamplingParams(
        temperature=1.1, seed=2, top_k=40, top_p=0.95, min_p=0.01, repetition_penalty=1.2, max_tokens=400
    ),
    "bounds": SamplingParams(temperature=0.8, seed=9, min_tokens=30, ignore_eos=True, max_tokens=400),
}
LANGUAGE = markov_logits(258, order=2, seed=3, scale=2.0)
NOISE = markov_logits(258, order=2, seed=4, scale=0.7)


def draft_logits(prefix: Sequence[int]) -> Logits:
    """A language much like the target's."""
    mixed: Logits = LANGUAGE(prefix) + NOISE(prefix)
    return mixed


DRAFTERS = Drafters(draft_logits, [*b'{}[]",: abcdefghotx0123', 256, 257, 200])


def target() -> FakeModel:
    return FakeModel(logits=LANGUAGE, sequences=4, context_length=1024)


def matches(constraint: str, text: str) -> bool:
    if constraint != "schema":
        pattern = {
            "regex": CONSTRAINTS["regex"].source,
            "grammar": r"[a-e] = [0-9]{1,4}(; [a-e] = [0-9]{1,4}){3,5}\.",
        }[constraint]
        return re.fullmatch(pattern, text) is not None
    value = json.loads(text)
    return (
        set(value) == set(SCHEMA["required"])
        and value["kind"] in SCHEMA["properties"]["kind"]["enum"]
        and re.fullmatch("[a-z ]{2,12}", value["first_name"]) is not None
        and len(value["values"]) <= 6
        and all(type(item) is int and 0 <= item <= 40 for item in value["values"])
        and isinstance(value["good"], bool)
    )


@matrix(
    drafters=[*STAGES, "noise"],
    constraint=CONSTRAINTS,
    settings=SETTINGS,
    concurrent=[False, True],
    ids={"concurrent": ["alone", "concurrent"]},
)
def test_every_drafter_leaves_a_constrained_answer_as_it_is(
    drafters: str, constraint: str, settings: str, concurrent: bool
) -> None:
    params = replace(SETTINGS[settings], constraint=CONSTRAINTS[constraint])
    origins = assert_lossless(
        target,
        lambda model: DRAFTERS.named(drafters, model),
        PROMPTS,
        params,
        concurrent=concurrent,
        planner=PLANNERS["auto" if drafters == "auto" else "static"],
    )
    if drafters == "draft-model" or (drafters == "grammar" and constraint != "grammar"):
        assert origins.get(drafters, 0) > 0, "something was drafted and accepted"


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_every_answer_is_whole_and_allowed(constraint: str, settings: str) -> None:
    """It ends by itself, far from `max_tokens`, with the token that completes it."""
    model = target()
    with Engine(model, drafters=DRAFTERS.named("auto", model)) as engine:
        for prompt in PROMPTS:
            params = replace(SETTINGS[settings], constraint=CONSTRAINTS[constraint])
            result = engine.generate(prompt, params)
            assert result.finish_reason is FinishReason.STOP
            assert matches(constraint, result.text)
            assert result.tokens == tuple(result.text.encode())


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_forced_tokens_are_always_accepted(constraint: str) -> None:
    model = target()
    with Engine(model, drafters=DRAFTERS.named("grammar", model)) as engine:
        for seed in range(3):
            params = SamplingParams(temperature=1.0, seed=seed, constraint=CONSTRAINTS[constraint])
            result = engine.generate(PROMPTS[0], params)
            assert result.timings.draft_n_accepted == result.timings.draft_n > 0


def test_no_row_is_computed_for_a_forbidden_token_or_after_the_end() -> None:
    model = target()
    script = b"12;99 and more"
    drafter = ScriptedDrafter(lambda tokens: list(script)[len(tokens) - 1 :])
    with Engine(model, drafters=[drafter]) as engine:
        bias = {ord("2"): 50.0, ord(";"): 60.0}
        params = SamplingParams(constraint=Constraint("regex", "12+;"), logit_bias=bias)
        result = engine.generate([9], params)
    assert result.text == "12;"
    assert [batch[0].tokens for batch in model.forwards] == [(9,), (ord("1"), ord("2"))]


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_sampled_drafts_under_other_rules_keep_to_the_constraint(rule: VerifyRule) -> None:
    model = target()
    with Engine(model, drafters=DRAFTERS.named("draft-model", model)) as engine:
        drafted = 0
        for name, constraint in CONSTRAINTS.items():
            for seed in range(3):
                params = SamplingParams(
                    temperature=1.0, seed=seed, constraint=constraint, verify=rule, max_tokens=400
                )
                result = engine.generate(PROMPTS[1], params)
                assert result.error is None
                assert matches(name, result.text)
                drafted += result.timings.draft_n_accepted
    assert drafted > 50


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
def test_under_every_rule_the_distribution_is_the_target_s_own_within_the_constraint(
    rule: VerifyRule, is_nightly: bool
) -> None:
    """Two letters of three, exactly: P(first) · P(second) of the target, each over what is allowed."""
    constraint = Constraint("regex", "[abc][ab]x")
    model = target()
    counts: dict[str, int] = {}
    runs = 1500 if is_nightly else 500
    with Engine(
        model, drafters=[DRAFTERS.make(Stage("draft-model", {"model": "small", "max": "3"}), model)]
    ) as engine:
        for seed in range(runs):
            params = SamplingParams(temperature=1.0, seed=seed, constraint=constraint, verify=rule)
            text = engine.generate([9, 9], params).text
            counts[text] = counts.get(text, 0) + 1
    for first in b"abc":
        for second in b"ab":
            chance = share([9, 9], first, b"abc") * share([9, 9, first], second, b"ab")
            spread = (chance * (1 - chance) / runs) ** 0.5
            seen = counts.get(bytes([first, second]).decode() + "x", 0) / runs
            assert abs(seen - chance) < 4.5 * spread + 1e-9
    assert sum(counts.values()) == runs


def share(prefix: Sequence[int], token: int, choices: bytes) -> float:
    weights = np.exp(LANGUAGE(prefix).astype(np.float64))
    return float(weights[token] / weights[list(choices)].sum())


def test_a_bad_constraint_is_refused_when_the_request_comes_in() -> None:
    with Engine(target()) as engine:
        with pytest.raises(RequestError, match="regex cannot be used"):
            engine.generate("x", constraint=Constraint("regex", "(a"))
        with pytest.raises(RequestError, match="constraint"):
            engine.generate("x", constraint="[0-9]")  # type: ignore[arg-type]
        assert engine.idle


# --- with llama.cpp ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    pytest.importorskip("xllamacpp")
    from gguf_factory import tiny_llama

    folder = tmp_path_factory.mktemp("tiny")
    path = tiny_llama(folder / "tiny.gguf", ctx_train=512)
    with Engine.load(
        path, speculate="off", threads=1, gpu_layers=0, context_length=512, cache_dir=folder, remember=False
    ) as engine:
        yield engine


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_a_gguf_gives_the_same_answer_whatever_drafts(
    tiny: Engine, constraint: str, temperature: float
) -> None:
    params = SamplingParams(
        temperature=temperature, seed=3, max_tokens=300, constraint=CONSTRAINTS[constraint]
    )
    prompt = "The quick brown fox: "
    tiny.set_speculation("off")
    plain = tiny.generate(prompt, params)
    assert plain.finish_reason is FinishReason.STOP
    assert matches(constraint, plain.text)
    drafted = 0
    for speculation in ("grammar", "suffix:min=1;grammar", "recycle:min-p=0;ngram-simple:n=2,m=6", "auto"):
        tiny.set_speculation(speculation)
        result = tiny.generate(prompt, params)
        assert (result.tokens, result.text) == (plain.tokens, plain.text)
        drafted += result.timings.draft_n_accepted
    assert drafted > 0


@pytest.mark.model
def test_the_default_model_answers_in_a_schema(model_path: Path, shared_cache: Path) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "capital_city": {"type": "string", "maxLength": 20},
            "official_language": {"type": "string", "maxLength": 20},
            "population_in_millions": {"type": "integer", "minimum": 1, "maximum": 2000},
            "continent": {"enum": ["Europe", "South America", "North America", "Asia", "Africa", "Oceania"]},
        },
        "required": ["capital_city", "official_language", "population_in_millions", "continent"],
        "additionalProperties": False,
    }
    constraint = Constraint("json_schema", json.dumps(schema))
    messages = [{"role": "user", "content": "Describe France as JSON."}]
    results: list[Completion] = []
    with Engine.load(
        model_path, speculate="off", threads=1, context_length=512, cache_dir=shared_cache, remember=False
    ) as engine:
        for speculation in ("off", "grammar", "auto"):
            engine.set_speculation(speculation)
            results.append(engine.generate(messages, max_tokens=120, constraint=constraint))
    plain, forced, _ = results
    assert all(result.tokens == plain.tokens for result in results)
    value = json.loads(plain.text)
    assert sorted(value) == sorted(schema["required"])
    assert value["continent"] in schema["properties"]["continent"]["enum"]
    assert 1 <= value["population_in_millions"] <= 2000
    assert forced.timings.draft_n_accepted == forced.timings.draft_n > 5
