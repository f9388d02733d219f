"""Conversations whose template drops earlier thoughts: text that drafters have seen and the cache holds is
gone in the next turn. With every drafter the answers are those without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import thinking_cases as cases
from claude_server import TemplateTokenizer
from foredraft import Engine, SamplingParams, registry
from foredraft.config import Stage
from foredraft.engine.streams import fold
from foredraft.errors import MissingDependencyError
from foredraft.protocols import Drafter, Model
from foredraft.registry import create_drafter
from foredraft.sampling.coupled import CoupledSampler
from foredraft.sampling.thought import answer_guide
from foredraft.server.tools.answer import chat_reader, deltas
from foredraft.server.tools.deltas import collect
from foredraft.testing import FakeModel, drafter_context, markov_logits
from foredraft.types import Completion, Logits
from matrix import matrix

OPTIONS = {
    "ngram-simple": {"n": "2", "m": "5"},
    "ngram-map-k": {"n": "2", "m": "5"},
    "ngram-map-k4v": {"n": "2", "m": "5"},
    "ngram-mod": {"n": "2", "min": "0", "max": "5"},
    "recycle": {"min-p": "0"},
    "draft-model": {"model": "small", "max": "5"},
}
TEMPLATES = {"drops": cases.QWEN, "opens and drops": cases.DEEPSEEK, "keeps": cases.GLM}
LANGUAGE = markov_logits(258, order=2, seed=6, scale=3.0)
LETTERS = [*b"abcdef ."]
TURNS = ["ab ab cd", "and ab ab?", "cd cd ef", "ab?"]


def words(prefix: Sequence[int]) -> Logits:
    """A thought of some letters and an answer of some: both end after about thirty characters."""
    said = cases.said_after(prefix)
    row = np.full(258, -50.0, np.float32)
    row[LETTERS] = LANGUAGE(prefix)[LETTERS]
    head, closing, answer = said.partition("</think>")
    written = answer if closing else head.removeprefix("<think>")
    whole = "<think>" if not said.startswith("<think>") and not closing else ""
    if whole and whole.startswith(said):
        row[ord(whole[len(said)])] = 60.0
    elif not closing and (len(written) > 30 or "<" in written):
        ends = "</think>"
        row[ord(ends[max(at for at in range(len(ends)) if written.endswith(ends[:at]))])] = 60.0
    elif closing and len(answer) > 30:
        row[256] = 60.0
    return row


def target(template: str) -> FakeModel:
    model = FakeModel(258, logits=words, features=("layer:1", "next"), sequences=2, context_length=2048)
    model.tokenizer = TemplateTokenizer(template)
    return model


def make(name: str, model: Model) -> Drafter:
    tokenizer = model.tokenizer

    def load(path: str, *, sequences: int, context_length: int) -> Model:
        return FakeModel(258, logits=words, sequences=sequences, context_length=context_length, name=path)

    sampler = CoupledSampler(258, tokenizer.end_tokens, lambda it: answer_guide(it, tokenizer))
    context = replace(drafter_context(model), sampler=sampler, load_model=load)
    return create_drafter(Stage(name, OPTIONS.get(name, {})), context)


def drafters_of(names: Sequence[str], model: Model) -> list[Drafter]:
    try:
        return [make(name, model) for name in names]
    except (ModuleNotFoundError, MissingDependencyError) as missing:
        pytest.skip(str(missing))


def conversation(engine: Engine, params: SamplingParams, prediction: str = "") -> list[Completion]:
    """The answers of some turns, each with what was thought and said before it."""
    messages: list[dict[str, Any]] = []
    answers: list[Completion] = []
    for question in TURNS:
        messages.append({"role": "user", "content": question})
        reader = chat_reader(engine.model.tokenizer, engine.encode(messages))
        events = list(engine.stream(messages, params, prediction=prediction))
        said = collect(deltas(reader, events))
        assert said.reasoning
        assert said.text
        messages.append({"role": "assistant", "content": said.text, "reasoning_content": said.reasoning})
        answers.append(fold(events))
    return answers


@matrix(
    drafter=[*registry.drafter_names(), "all"],
    template=TEMPLATES,
    temperature=[0.0, 0.9],
    budget=[None, 9],
    ids={},
)
def test_turns_are_the_same_with_every_drafter(
    drafter: str, template: str, temperature: float, budget: int | None
) -> None:
    params = SamplingParams(temperature=temperature, seed=4, max_tokens=120, reasoning_budget=budget)
    found: list[list[Completion]] = []
    for speculated in (False, True):
        model = target(TEMPLATES[template])
        names = registry.drafter_names() if drafter == "all" else [drafter]
        drafters = drafters_of(names, model) if speculated else []
        with Engine(model, drafters=drafters, clock=model.clock) as engine:
            found.append(conversation(engine, params, prediction="ab ab cd cd ef"))
            assert not engine.notes
    plain, drafted = found
    assert [answer.tokens for answer in drafted] == [answer.tokens for answer in plain]
    for answers in found:
        assert all(answer.usage.cached_tokens > 0 for answer in answers[1:]), (
            "the cache goes up to the thought"
        )
        assert all(answer.usage.reasoning_tokens > 0 for answer in answers)
    if drafter not in ("grammar", "prediction") or (drafter == "grammar" and budget is not None):
        assert sum(answer.timings.draft_n_accepted for answer in drafted) > 0
