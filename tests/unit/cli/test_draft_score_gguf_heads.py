"""`foredraft draft score` with heads of GGUF models: an EAGLE-3 file, and a model's own layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gguf_dflash
import gguf_factory
import gguf_heads
import gguf_hybrids
from command_line import Command, Ran
from foredraft.backends.llamacpp import ext
from foredraft.engine.engine import Engine
from foredraft.errors import MissingDependencyError

pytestmark = pytest.mark.usefixtures("quick_trial")

TOKENS = 64
WORDS = [f"{size} {word}" for size in ("small", "large") for word in ("cat", "sea", "tree", "stone")]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its next token depends on the last one only."""
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("target") / "t.gguf", layers=4, mixing=0.0)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [{"id": word, "category": "words", "turns": [f"Tell me about a {word}."]} for word in WORDS]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def knowing(path: Path, kind: str, target: Path, known: list[int] | None = None) -> Path:
    """A head that is right about the target wherever the next token is among those that it knows."""
    if kind == "eagle3":
        return gguf_heads.tiny_eagle3(path, right=target, chosen=known, window=1 if known else 0)
    return gguf_dflash.tiny_dflash(path, kind="markov", right=target, chosen=known)


def scored(command: Command, prompts: Path, *arguments: object) -> Ran:
    return command("draft", "score", *arguments, "--prompts", prompts, "-n", TOKENS, "-t", 1)


def rules(ran: Ran) -> dict[tuple[str, float], dict[str, Any]]:
    assert ran.code == 0, ran.err
    return {(one["rule"], one["temperature"]): one for one in json.loads(ran.out)["rules"]}


@pytest.mark.parametrize("kind", ["eagle3", "dspark"])
def test_a_head_that_knows_the_target_is_always_right(
    foredraft: Command, target: Path, prompts: Path, tmp_path: Path, kind: str
) -> None:
    """A block's rows follow the likeliest tokens: with others it is right about its first token."""
    head = knowing(tmp_path / "head.gguf", kind, target)
    found = rules(scored(foredraft, prompts, target, head, "--limit", 3, "--json"))
    for (_, temperature), one in found.items():
        if kind == "eagle3" or not temperature:
            assert one["accept_by_depth"] == pytest.approx([1.0] * 8, abs=0.02)
        else:
            assert one["accept_by_depth"][0] == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(("kind", "temperature"), [("eagle3", 0.0), ("eagle3", 0.8), ("dspark", 0.0)])
def test_a_run_has_the_acceptance_that_was_scored(
    foredraft: Command, target: Path, prompts: Path, tmp_path: Path, kind: str, temperature: float
) -> None:
    """Of a head that knows three quarters of the vocabulary."""
    known = [token for token in range(384) if token % 4]
    head = knowing(tmp_path / "head.gguf", kind, target, known)
    ran = scored(foredraft, prompts, target, head, "--temperature", temperature, "--json")
    found = rules(ran)["match", temperature]
    accepted, drafts = [0] * 4, 0
    where: dict[str, Any] = {"cache_dir": tmp_path, "threads": 1, "remember": False}
    with Engine.load(target, speculate=f"heads:model={head},max=4", **where) as engine:
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


def test_a_model_s_own_layers(foredraft: Command, prompts: Path, tmp_path: Path) -> None:
    """Of a hybrid, whose sequences cannot be cut anywhere."""
    hybrid = gguf_hybrids.tiny_qwen35(tmp_path / "hybrid.gguf", following=1, mixing=0.0, weight_type="f32")
    ran = scored(foredraft, prompts, hybrid, "own", "--limit", 2, "--json")
    found = rules(ran)["match", 0.0]
    assert found["accept"] == pytest.approx(1.0, abs=0.05)
    assert json.loads(ran.out)["draft"] == "its own layers"


def test_a_head_of_another_model(foredraft: Command, prompts: Path, target: Path, tmp_path: Path) -> None:
    other = gguf_factory.tiny_llama(tmp_path / "other.gguf", layers=4, embd=32)
    head = gguf_heads.tiny_eagle3(tmp_path / "head.gguf", right=target)
    ran = scored(foredraft, prompts, other, head)
    assert (ran.code, ran.out) == (2, "")
    assert "head.gguf" in ran.err
    assert "Traceback" not in ran.err


def test_layers_of_its_own_that_it_has_not(foredraft: Command, prompts: Path, target: Path) -> None:
    ran = scored(foredraft, prompts, target, "own")
    assert (ran.code, ran.out) == (2, "")
    assert "no layers for multi-token prediction" in ran.err


def test_a_library_without_functions_for_heads(
    foredraft: Command, prompts: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head cannot be scored; an answer needs none."""

    def lacking() -> ext.Functions:
        raise MissingDependencyError("The library lacks a function for heads.")

    monkeypatch.setattr(ext, "functions", lacking)
    head = gguf_heads.tiny_eagle3(tmp_path / "head.gguf", right=target)
    ran = scored(foredraft, prompts, target, head)
    assert (ran.code, ran.out) == (2, "")
    assert "lacks a function for heads" in " ".join(ran.err.split())
    own = gguf_hybrids.tiny_qwen35(tmp_path / "own.gguf", following=1)
    with Engine.load(own, cache_dir=tmp_path, threads=1) as engine:
        [why] = [note for note in engine.notes if "heads" in note]
        assert "lacks a function for heads" in why
        assert len(engine.generate([1, 2], max_tokens=4, ignore_eos=True).tokens) == 4
