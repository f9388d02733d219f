"""`foredraft draft score` with trained heads, of safetensors: right by construction, right now and then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch_factory
import torch_heads
from command_line import Command, Ran
from foredraft.backends.torch import BACKEND
from foredraft.drafters.heads import HeadsDrafter
from foredraft.engine.engine import Engine
from foredraft.sampling.coupled import CoupledSampler
from torch_cases import load

pytestmark = pytest.mark.usefixtures("quick_trial")

TOKENS = 48
WORDS = [f"{size} {word}" for size in ("small", "large", "old") for word in ("cat", "sea", "tree", "stone")]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its next token depends on the last one only."""
    return torch_heads.make_forgetful(tmp_path_factory.mktemp("target") / "target")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [{"id": word, "category": "words", "turns": [f"Tell me about a {word}."]} for word in WORDS]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def scored(command: Command, prompts: Path, *arguments: object) -> Ran:
    return command("draft", "score", *arguments, "--prompts", prompts, "-n", TOKENS, "-t", 1)


def rules(ran: Ran) -> dict[tuple[str, float], dict[str, Any]]:
    assert ran.code == 0, ran.err
    return {(one["rule"], one["temperature"]): one for one in json.loads(ran.out)["rules"]}


def test_a_head_that_knows_the_target_is_always_right(
    foredraft: Command, target: Path, prompts: Path, tmp_path: Path
) -> None:
    head = torch_heads.write_knowing(tmp_path / "head", target)
    ran = scored(foredraft, prompts, target, head, "--limit", 2, "--json")
    for one in rules(ran).values():
        assert one["accept"] == pytest.approx(1.0, abs=0.02)
        assert one["accept_by_depth"] == pytest.approx([1.0] * 8, abs=0.02)
    assert "a head that reads layer:" in json.loads(ran.out)["about"]["draft"]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_run_has_the_acceptance_that_was_scored_of_a_head(
    foredraft: Command, target: Path, prompts: Path, tmp_path: Path, temperature: float
) -> None:
    """It knows two thirds of the vocabulary, and drafts chains, as those that were scored."""
    head = torch_heads.write_knowing(
        tmp_path / "head", target, known=[token for token in range(300) if token % 3]
    )
    ran = scored(foredraft, prompts, target, head, "--temperature", temperature, "--json")
    found = rules(ran)["match", temperature]
    model = load(target, "auto", watch=BACKEND.features_for(target, head))
    ends = model.tokenizer.end_tokens
    loaded = model.load_head(head, sequences=model.capabilities.sequences)
    sampler = CoupledSampler(model.info.vocab_size, ends)
    drafter = HeadsDrafter(loaded, sampler, end_tokens=ends, trees=False, max_tokens=4)
    accepted, drafts = [0] * 4, 0
    with Engine(model, drafters=[drafter]) as engine:
        for number, word in enumerate(WORDS):
            answer = engine.generate(
                [{"role": "user", "content": f"Tell me about a {word}."}],
                max_tokens=TOKENS,
                temperature=temperature,
                seed=1 + number,
            ).speculation
            drafts += answer.drafters["heads"].drafts
            for depth, count in enumerate(answer.accepted_by_depth):
                accepted[depth] += count
    share = [count / drafts for count in accepted]
    assert 0.0 < share[0] < 1.0
    assert found["survival"][3] == pytest.approx(share, abs=0.03)


def test_a_head_of_another_model(foredraft: Command, prompts: Path, target: Path, tmp_path: Path) -> None:
    other = torch_factory.make_tiny_llama(tmp_path / "other", hidden_size=32, num_hidden_layers=4)
    head = torch_heads.write_knowing(tmp_path / "head", target)
    ran = scored(foredraft, prompts, other, head)
    assert (ran.code, ran.out) == (2, "")
    assert "head" in ran.err
    assert "Traceback" not in ran.err


def test_layers_of_its_own_that_it_has_not(foredraft: Command, prompts: Path, target: Path) -> None:
    for own in ("own", ""):
        ran = scored(foredraft, prompts, target, own)
        assert (ran.code, ran.out) == (2, "")
        assert "no layers for multi-token prediction" in ran.err
