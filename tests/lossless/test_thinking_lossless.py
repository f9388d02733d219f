"""The first promise for models that think: the same tokens whatever drafts, with a budget and without, and a
constraint behind the thought.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gguf_factory
from constrained_drafters import PLANNERS, STAGES, Drafters
from foredraft import Constraint, Engine, SamplingParams
from foredraft.config import ModelOptions, Stage
from foredraft.engine.thinking import thinking_of
from foredraft.protocols import Drafter, Model
from foredraft.registry import create_drafter
from foredraft.testing import (
    FakeModel,
    FakeTokenizer,
    ScriptedDrafter,
    assert_lossless,
    drafter_context,
    markov_logits,
)
from foredraft.types import Completion, Logits, Place, Thinking, TokenEvent, VerifyRule
from matrix import matrix
from thinking_cases import DEEPSEEK

OPEN, CLOSE = 258, 259
VOCABULARY = 260
TEXT = [*b"abcdefgh .\n", OPEN, CLOSE, 256]


class Marked(FakeTokenizer):
    """Bytes, and the marks as control tokens."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY)

    def token_bytes(self, token: int) -> bytes:
        return b"" if token in (OPEN, CLOSE) else super().token_bytes(token)

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        if not special:
            return super().encode(text, add_bos=add_bos)
        pieces = re.split("(</?think>)", text)
        marks = {"<think>": [OPEN], "</think>": [CLOSE]}
        return [token for piece in pieces for token in marks.get(piece) or piece.encode()]


LANGUAGE = markov_logits(VOCABULARY, order=2, seed=3, scale=2.0)
NOISE = markov_logits(VOCABULARY, order=2, seed=4, scale=0.7)


def thoughtful(prefix: Sequence[int]) -> Logits:
    """Text of few letters that likes to begin with a thought, and to end it after about thirty tokens."""
    row = np.full(VOCABULARY, -9.0, np.float32)
    row[TEXT] = LANGUAGE(prefix)[TEXT]
    row[OPEN] = 16.0 if prefix and prefix[-1] == ord(":") else -9.0
    row[256] = -2.0
    return row


def nearly(prefix: Sequence[int]) -> Logits:
    mixed: Logits = thoughtful(prefix) + NOISE(prefix)
    return mixed


def target() -> FakeModel:
    model = FakeModel(VOCABULARY, logits=thoughtful, sequences=4, context_length=1024)
    model.tokenizer = Marked()
    return model


SPELLED = Thinking("<think>", "</think>", "\n</think>\n\n")
OPENED = replace(SPELLED, begun=True)
SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["internal", "domestic"]}}, "required": ["kind"]}
CONSTRAINTS = {
    "none": None,
    "regex": Constraint("regex", "[a-d]{3} (and|or) [a-d]{2}\\."),
    "schema": Constraint("json_schema", json.dumps({**SCHEMA, "additionalProperties": False})),
    "any text": Constraint("regex", "(?s:.*)"),
}
SETTINGS = {
    "greedy": SamplingParams(max_tokens=160),
    "warm": SamplingParams(temperature=0.9, seed=5, max_tokens=160),
    "truncated": SamplingParams(
        temperature=1.1, seed=2, top_k=40, top_p=0.95, repetition_penalty=1.2, max_tokens=160
    ),
    "stops": SamplingParams(temperature=0.8, seed=9, min_tokens=30, stop=("a", "<th"), max_tokens=160),
}
DRAFTERS = Drafters(nearly, [*TEXT, *b'\n\n{"k', CLOSE, CLOSE])
PROMPTS = [list(b"abc abc abd:"), list(b"one :"), list(b"ab. cd. ab. cd. ef:"), list(b":")]


@matrix(
    drafters=[*STAGES, "noise"],
    settings=SETTINGS,
    constraint=CONSTRAINTS,
    budget=[None, 0, 1, 7, 25],
    begun=[False, True],
    concurrent=[False, True],
    ids={"concurrent": ["alone", "concurrent"], "begun": ["opens", "opened"]},
)
def test_every_drafter_leaves_a_thoughtful_answer_as_it_is(
    drafters: str, settings: str, constraint: str, budget: int | None, begun: bool, concurrent: bool
) -> None:
    params = replace(
        SETTINGS[settings],
        constraint=CONSTRAINTS[constraint],
        reasoning_budget=budget,
        thinking=OPENED if begun else SPELLED,
    )
    origins = assert_lossless(
        target,
        lambda model: DRAFTERS.named(drafters, model),
        PROMPTS,
        params,
        concurrent=concurrent,
        planner=PLANNERS["auto" if drafters == "auto" else "static"],
    )
    if drafters == "draft-model" or (drafters == "grammar" and budget is not None and begun):
        assert origins.get(drafters, 0) > 0, "something was drafted and accepted"


def spelled(prefix: Sequence[int]) -> Logits:
    """Likes to write a thought's marks letter by letter, at the beginning and later."""
    row = thoughtful(prefix)
    row[[OPEN, CLOSE]] = -9.0
    written = bytes(token for token in prefix if token < 256)
    for behind, mark in ((b":", b"<think>"), (b".", b"</think>")):
        begun = next(
            (at for at in range(len(mark) - 1, -1, -1) if written.endswith(behind + mark[:at])), None
        )
        if begun is not None:
            row[mark[begun]] = 16.0
    return row


@matrix(
    drafters=[*STAGES, "noise"],
    temperature=[0.0, 0.9],
    constraint=["none", "any text"],
    budget=[None, 7],
    stop=[(), ("ab", "k>")],
    ids={"stop": ["to the end", "stops"]},
)
def test_the_places_are_the_same_where_tokens_spell_the_marks(
    drafters: str, temperature: float, constraint: str, budget: int | None, stop: tuple[str, ...]
) -> None:
    params = SamplingParams(
        temperature=temperature,
        seed=3,
        max_tokens=120,
        stop=stop,
        thinking=SPELLED,
        constraint=CONSTRAINTS[constraint],
        reasoning_budget=budget,
    )

    def told(speculated: bool) -> list[list[object]]:
        model = FakeModel(VOCABULARY, logits=spelled, sequences=4, context_length=1024)
        model.tokenizer = Marked()
        made = DRAFTERS.named(drafters, model) if speculated else []
        with Engine(model, drafters=made, clock=model.clock) as engine:
            return [
                [
                    (event.token, event.text, event.place)
                    if isinstance(event, TokenEvent)
                    else (event.reason, event.text, event.usage.reasoning_tokens)
                    for event in engine.stream(prompt, params)
                ]
                for prompt in PROMPTS
            ]

    plain = told(speculated=False)
    assert told(speculated=True) == plain
    text = [b"".join(Marked().token_bytes(event[0]) for event in answer[:-1]) for answer in plain]  # type: ignore[index]
    assert any(it.startswith(b"<think>") for it in text), "a mark is spelled"
    places = {event[2] for answer in plain for event in answer[:-1]}  # type: ignore[index]
    if constraint == "none":
        assert Place.INSIDE in places or budget == 0
    else:
        assert places == {Place.ANSWER}
        assert all(answer[-1][2] == 0 for answer in plain)  # type: ignore[index]


def parts(tokens: Sequence[int], *, begun: bool) -> tuple[list[int], list[int]]:
    """(the tokens of the thought, those behind its closing)"""
    given = list(tokens)
    if not begun:
        if OPEN not in given[:1]:
            return [], given
        given = given[1:]
    if CLOSE not in given:
        return given, []
    end = given.index(CLOSE)
    return given[:end], given[end + 1 :]


def within_a_character(tokens: Sequence[int]) -> bool:
    """Whether bytes of UTF-8 end behind a character's first byte and before its last."""
    back = next((n for n, token in enumerate(reversed(tokens)) if not 0x80 <= token < 0xC0), 0)
    leads = ((0xC2, 0xE0, 1), (0xE0, 0xF0, 2), (0xF0, 0xF5, 3))
    return bool(tokens) and any(low <= tokens[-1 - back] < high and back < more for low, high, more in leads)


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("budget", [0, 3, 12])
def test_a_budget_holds_under_every_rule(rule: VerifyRule, begun: bool, budget: int) -> None:
    model = target()
    ended = 0
    with Engine(model, drafters=DRAFTERS.named("draft-model", model)) as engine:
        for seed in range(6):
            params = SamplingParams(
                temperature=1.0,
                seed=seed,
                verify=rule,
                reasoning_budget=budget,
                thinking=OPENED if begun else SPELLED,
                constraint=CONSTRAINTS["regex"],
                max_tokens=160,
            )
            for prompt in PROMPTS:
                answer = engine.generate(prompt, params)
                thought, rest = parts(answer.tokens, begun=begun)
                if len(thought) > budget and thought[-1] == ord("\n"):
                    ended += 1
                    thought = thought[:-1]
                late = range(budget, len(thought))
                assert len(late) <= 3
                assert all(within_a_character(thought[:length]) for length in late)
                if OPEN in answer.tokens or begun:
                    assert rest[:2] == list(b"\n\n")
                    assert answer.usage.reasoning_tokens == len(answer.tokens) - len(rest) + 2
                said = bytes(rest).decode().removeprefix("\n\n")
                assert re.fullmatch("[a-d]{3} (and|or) [a-d]{2}\\.", said), said
    assert ended > 3


def test_a_grammar_does_not_hold_in_the_thought_and_no_end_does() -> None:
    model = target()
    with Engine(model, drafters=DRAFTERS.named("auto", model)) as engine:
        params = SamplingParams(thinking=OPENED, constraint=CONSTRAINTS["schema"], max_tokens=400)
        answers = [engine.generate(prompt, replace(params, temperature=1.0, seed=1)) for prompt in PROMPTS]
    for answer in answers:
        thought, rest = parts(answer.tokens, begun=True)
        assert 256 not in thought
        assert json.loads(bytes(rest))["kind"] in ("internal", "domestic")


# --- small random models on both backends ----------------------------------------------------------------


@contextmanager
def loaded(kind: str, folder: Path) -> Iterator[Callable[[], Model]]:
    """Makes a model whose template opens a thought."""
    options = ModelOptions(threads=1, gpu_layers=0, sequences=4, context_length=512, probe=False)
    if kind == "gguf":
        from foredraft.backends.llamacpp import BACKEND as LLAMA

        path = gguf_factory.tiny_llama(folder / "tiny.gguf", chat_template=DEEPSEEK)
        yield lambda: LLAMA.load(path, options)
        return
    torch_factory = pytest.importorskip("torch_factory")
    from foredraft.backends.torch import BACKEND as TORCH

    made = torch_factory.make_tiny_llama(folder / "tiny")
    torch_factory.make_tokenizer(DEEPSEEK).save_pretrained(made)
    yield lambda: TORCH.load(made, options)


@pytest.mark.parametrize("kind", ["gguf", "torch"])
def test_small_models_think_alike_with_drafts(kind: str, tmp_path: Path) -> None:
    """Greedy and seeded, alone and in company, with a budget and without, a grammar behind the thought."""
    with loaded(kind, tmp_path) as load:
        model = load()
        tokenizer = model.tokenizer
        with Engine(model) as engine:
            prompts = [engine.encode([{"role": "user", "content": text}]) for text in ("one", "and two two")]
            thinking = thinking_of(tokenizer, prompts[0])
            assert thinking is not None
            assert thinking.begun
        for budget, constraint in ((None, "none"), (9, "none"), (9, "schema")):
            for temperature in (0.0, 0.9):
                params = SamplingParams(
                    temperature=temperature,
                    seed=3,
                    max_tokens=60,
                    thinking=thinking,
                    reasoning_budget=budget,
                    constraint=CONSTRAINTS[constraint],
                )
                for concurrent in (False, True):
                    assert_lossless(load, everything, prompts, params, concurrent=concurrent)


def everything(model: Model) -> list[Drafter]:
    vocabulary = model.info.vocab_size

    def guess(tokens: Sequence[int]) -> list[int]:
        return [int(it) for it in np.random.default_rng(len(tokens)).integers(0, vocabulary, 5)]

    context = drafter_context(model)
    own = [create_drafter(Stage(name), context) for name in ("suffix", "grammar")]
    return [*own, ScriptedDrafter(guess, name="guess")]


def test_the_schema_is_kept_behind_a_thought_of_a_small_model(tmp_path: Path) -> None:
    with loaded("gguf", tmp_path) as load, Engine(load()) as engine:
        params = SamplingParams(reasoning_budget=9, constraint=CONSTRAINTS["schema"], max_tokens=400)
        answer: Completion = engine.generate([{"role": "user", "content": "one"}], params)
        thought, closing, said = answer.text.partition("</think>")
        assert closing
        assert thought.endswith("\n")
        assert json.loads(said)["kind"] in ("internal", "domestic")
        assert 9 < answer.usage.reasoning_tokens < answer.usage.completion_tokens
