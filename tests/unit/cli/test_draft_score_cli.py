"""`foredraft draft score`: what it prints, that a run then has that acceptance, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gguf_factory
from command_line import Command, Ran
from foredraft.bench.workloads import load_prompts
from foredraft.draft.score import Scorer
from foredraft.draft.trial import Gain
from foredraft.engine.engine import Engine

pytestmark = pytest.mark.usefixtures("quick_trial")

TOKENS = 64


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    words = ["cat", "sea", "tree", "stone", "river", "cloud", "house", "road"]
    rows = [{"id": word, "category": "words", "turns": [f"Tell me about a {word}."]} for word in words]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def like_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model in 4 bits: near it, and not the same."""
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("drafts") / "q4.gguf", weight_type="q4_0")


@pytest.fixture(scope="module")
def unlike_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same vocabulary that knows nothing of it."""
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("drafts") / "other.gguf", seed=7)


def scored(command: Command, *arguments: object) -> Ran:
    return command("draft", "score", *arguments, "-t", 1)


def as_json(ran: Ran) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def rule(found: dict[str, Any], name: str, temperature: float) -> dict[str, Any]:
    [one] = [one for one in found["rules"] if (one["rule"], one["temperature"]) == (name, temperature)]
    return dict(one)


# --- what it says --------------------------------------------------------------------------------------


def test_the_tables(foredraft: Command, tiny: Path, like_tiny: Path, prompts: Path) -> None:
    ran = scored(foredraft, tiny, like_tiny, "--prompts", prompts, "-n", 32, "--limit", 3)
    assert ran.code == 0, ran.err
    for part in (
        "Accepted at each depth",
        "tokens of a round",
        "by its own probability",
        "KL(p‖q)",
        "over 0.9",
    ):
        assert part in ran.out
    assert "6 answers" in ran.out
    assert "auto gains" in ran.out
    assert "Tried here, at temperature 0.8: a plain round takes" in ran.out
    assert "\x1b" not in ran.out
    assert "Traceback" not in ran.err


def test_a_model_drafts_perfectly_for_itself(foredraft: Command, tiny: Path, prompts: Path) -> None:
    found = as_json(scored(foredraft, tiny, tiny, "--prompts", prompts, "-n", 32, "--json"))
    for one in found["rules"]:
        assert one["accept_by_depth"] == pytest.approx([1.0] * 8, abs=1e-3)
        assert one["accept"] == pytest.approx(1.0, abs=1e-3)
    assert found["distances"][0]["kl_pq"] == pytest.approx(0.0, abs=1e-3)
    assert rule(found, "match", 0.0)["length"][7] > 6


def test_the_fields_of_the_json(foredraft: Command, tiny: Path, unlike_tiny: Path, prompts: Path) -> None:
    found = as_json(
        scored(foredraft, tiny, unlike_tiny, "--prompts", prompts, "-n", 32, "--limit", 2, "--json")
    )
    assert found["format"] == "foredraft-draft-score"
    assert "assumed" not in found["about"]  # the answers are the model's own, at temperatures that are known
    assert found["version"] == 1
    assert set(found) == {
        *("format", "version", "model", "draft", "about", "distances"),
        *("rules", "calibration", "times", "auto"),
    }
    assert [(one["rule"], one["temperature"]) for one in found["rules"]] == [
        ("match", 0.0), ("match", 0.8), ("rejection", 0.8), ("block", 0.8),
    ]  # fmt: skip
    for one in found["rules"]:
        assert len(one["length"]) == len(one["speedup"]) == len(one["accept_by_depth"]) == 8
        # None of a length that was not drafted in the few rounds that were timed.
        assert one["best_speedup"] == max(speed for speed in one["speedup"] if speed is not None)
    for one in found["times"]:
        assert one["plain_ms"] > 0
        assert len(one["rounds"]) == len(one["drafting"]) == 9
        assert (one["rounds"][0], one["drafting"][0]) == (1.0, 0.0)
        known = [pair for pair in zip(one["rounds"], one["drafting"], strict=True) if None not in pair]
        assert len(known) > 1
        assert all(cost > part > 0 for cost, part in known[1:])
    assert [one["temperature"] for one in found["times"]] == [0.0, 0.8]
    for one in found["calibration"]:
        assert sum(part["share"] for part in one["bins"]) == pytest.approx(1.0)
    for one in found["rules"]:
        if one["rule"] == "match":
            pays = round(one["best_speedup"], 2) > 1.03
            paying = one["best_length"] if pays else 0
            assert found["auto"]["lengths"][f"{one['temperature']:g}"] == paying
    gain = Gain(found["auto"]["gain"], found["auto"]["error"], found["auto"]["answers"])
    assert gain.answers == 4
    assert found["auto"]["uses"] is gain.pays


def test_temperature_0_is_greedy_alone(foredraft: Command, tiny: Path, prompts: Path) -> None:
    ran = scored(
        foredraft, tiny, tiny, "--prompts", prompts, "-n", 16, "--limit", 1, "--temperature", 0, "--json"
    )
    found = as_json(ran)
    assert [(one["rule"], one["temperature"]) for one in found["rules"]] == [("match", 0.0)]


# --- and what a run does -------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_run_has_the_acceptance_that_was_scored(
    foredraft: Command, tiny: Path, like_tiny: Path, prompts: Path, tmp_path: Path, temperature: float
) -> None:
    arguments = ("--prompts", prompts, "-n", TOKENS, "--temperature", temperature, "--json")
    found = rule(as_json(scored(foredraft, tiny, like_tiny, *arguments)), "match", temperature)
    accepted, drafts = [0] * 4, 0
    speculate = f"draft-model:model={like_tiny},max=4"
    with Engine.load(tiny, speculate=speculate, threads=1, cache_dir=tmp_path, remember=False) as engine:
        for number, case in enumerate(load_prompts(prompts)):
            answer = engine.generate(
                [{"role": "user", "content": case.turns[0]}],
                max_tokens=TOKENS,
                temperature=temperature,
                seed=1 + number,
            ).speculation
            drafts += answer.drafters["draft-model"].drafts
            for depth, count in enumerate(answer.accepted_by_depth):
                accepted[depth] += count
    share = [count / drafts for count in accepted]
    assert 0.2 < share[0] < 1.0
    assert found["survival"][3] == pytest.approx(share, abs=0.03)


# --- texts and traces ----------------------------------------------------------------------------------


def test_a_text(foredraft: Command, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("The cat sat on the mat, and the dog lay by the door. " * 40)
    found = as_json(scored(foredraft, tiny, tiny, "--text", file, "--limit", 2, "--json"))
    assert found["about"]["scored on"] == f"4 passages of {file}"
    assert "chooses at temperature 0 and 0.8" in found["about"]["assumed"]
    assert [one["positions"] for one in found["distances"]] == [256, 256]
    assert rule(found, "match", 0.0)["accept"] == pytest.approx(1.0, abs=1e-2)


def test_recorded_answers(foredraft: Command, tiny: Path, prompts: Path, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    ran = foredraft("bench", tiny, "--record", file, "--prompts", prompts, "-n", 32, "--limit", 2, "-t", 1)
    assert ran.code == 0, ran.err
    found = as_json(scored(foredraft, tiny, tiny, "--traces", file, "--json"))
    assert found["about"]["scored on"] == f"4 recorded answers of {file}"
    assert "chooses at temperature 0 and 0.8" in found["about"]["assumed"]
    greedy = as_json(scored(foredraft, tiny, tiny, "--traces", file, "--temperature", 0, "--json"))
    assert "chooses at temperature 0, at every place" in greedy["about"]["assumed"]
    assert rule(found, "match", 0.0)["accept"] == pytest.approx(1.0, abs=1e-2)


# --- what it refuses -----------------------------------------------------------------------------------


def refused(ran: Ran, *parts: str) -> None:
    assert ran.code == 2, (ran.out, ran.err)
    assert ran.out == ""
    for part in parts:
        assert part in ran.err
    assert "Traceback" not in ran.err


def test_a_text_that_says_nothing(foredraft: Command, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("")
    refused(scored(foredraft, tiny, tiny, "--text", file), "is empty")
    file.write_text("A few words.")
    refused(scored(foredraft, tiny, tiny, "--text", file), "too short", "tokens at least")
    file.write_bytes(b"\xff\xfe\x00\x01")
    refused(scored(foredraft, tiny, tiny, "--text", file), "is not UTF-8 text")
    refused(scored(foredraft, tiny, tiny, "--text", tmp_path / "none.txt"), "There is no file")
    refused(scored(foredraft, tiny, tiny, "--text", tmp_path), "is not a file")


def test_traces_that_say_nothing(foredraft: Command, tiny: Path, tmp_path: Path) -> None:
    refused(scored(foredraft, tiny, tiny, "--traces", tmp_path / "none"), "There is no trace file")
    file = tmp_path / "traces.jsonl"
    header = {"format": "foredraft-traces", "version": 1, "model": "another", "vocab_size": 9,
              "vocab_hash": "other", "end_tokens": []}  # fmt: skip
    file.write_text(json.dumps(header) + "\n")
    refused(scored(foredraft, tiny, tiny, "--traces", file), "There are no answers")
    file.write_text(json.dumps(header) + '\n{"id": "1", "prompt": [1, 2, 3], "output": [4, 5]}\n')
    refused(scored(foredraft, tiny, tiny, "--traces", file), "holds traces of another", "Record answers")


def test_two_sources(foredraft: Command, tiny: Path, tmp_path: Path) -> None:
    refused(scored(foredraft, tiny, tiny, "--text", "a", "--traces", "b"), "--text and --traces")
    refused(scored(foredraft, tiny, tiny, "--text", "a", "--prompts", tmp_path), "--text and --prompts")


def test_models_that_are_not_there(foredraft: Command, tiny: Path, tmp_path: Path) -> None:
    refused(scored(foredraft, tiny, tmp_path / "no.gguf"), "no.gguf")
    refused(scored(foredraft, tmp_path / "no.gguf", tiny), "no.gguf")
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    refused(scored(foredraft, tiny, text), "is not a GGUF file")


def test_another_vocabulary(foredraft: Command, tiny: Path, tmp_path: Path) -> None:
    other = gguf_factory.tiny_llama(tmp_path / "other.gguf", vocab=400)
    refused(scored(foredraft, tiny, other, "-n", 16), "another vocabulary", "--speculate")


def test_ctrl_c_shows_what_was_scored(
    foredraft: Command, tiny: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Scorer.add

    def pressed(self: Scorer, passage: Any) -> None:
        if self.passages == 3:
            raise KeyboardInterrupt
        add(self, passage)

    monkeypatch.setattr(Scorer, "add", pressed)
    ran = scored(foredraft, tiny, tiny, "--prompts", prompts, "-n", 16)
    assert ran.code == 130
    assert "stopped early" in ran.out
    assert "Stopped." in ran.err
    monkeypatch.setattr(Scorer, "add", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    ran = scored(foredraft, tiny, tiny, "--prompts", prompts, "-n", 16)
    assert (ran.code, ran.out) == (130, "")


def test_a_plot_is_checked_before_anything_is_loaded(foredraft: Command, tiny: Path, tmp_path: Path) -> None:
    refused(scored(foredraft, tiny, tiny, "--plot", tmp_path / "score.txt"), "no kind of picture")
    refused(scored(foredraft, tiny, tiny, "--plot", tmp_path / "none" / "a.svg"), "There is no folder")


def test_a_plot(foredraft: Command, tiny: Path, prompts: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "score.svg"
    ran = scored(foredraft, tiny, tiny, "--prompts", prompts, "-n", 16, "--limit", 1, "--plot", file)
    assert ran.code == 0, ran.err
    assert str(file) in ran.err
    assert b"depth in the draft" in file.read_bytes()
