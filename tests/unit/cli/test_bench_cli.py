"""`foredraft bench`: what is measured by which flags, what is written where, and the exit code."""

from __future__ import annotations

import csv
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gguf_factory
import gguf_heads
from command_line import Command, Ran
from foredraft.bench import sides
from foredraft.bench.report_files import write_report
from foredraft.bench.results import Sample
from foredraft.bench.workloads import load_prompts
from foredraft.errors import ConfigError
from foredraft.installation import add_extra
from foredraft.types import Completion


class Runner:
    """`foredraft bench` with the tiny model, one thread, a small context, few tokens and one pass."""

    def __init__(self, command: Command, model: Path) -> None:
        self._command = command
        self._model = model

    def __call__(self, *arguments: object) -> Ran:
        options = ("-t", 1, "--ctx", 256, "-n", 8, "--repeat", 1)
        return self._command("bench", self._model, *options, *arguments)

    def json(self, *arguments: object) -> dict[str, Any]:
        ran = self(*arguments, "--json", "-")
        assert ran.code == 0, ran.err
        value: dict[str, Any] = json.loads(ran.out)
        return value


@pytest.fixture
def run(foredraft: Command, tiny: Path) -> Runner:
    return Runner(foredraft, tiny)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [("a/1", "a", ["Hello?", "And?"]), ("a/2", "a", ["Well?"]), ("b/1", "b", ["One two one two"])]
    path.write_text(
        "\n".join(json.dumps({"id": name, "category": of, "turns": said}) for name, of, said in rows)
    )
    return path


# --- what is measured ----------------------------------------------------------------------------------


def test_auto_against_off_is_the_default(run: Runner, prompts: Path) -> None:
    value = run.json("--prompts", prompts)
    assert value["settings"] == ["off", "auto"]
    assert [entry["prompt"] for entry in value["prompts"]] == ["a/1", "a/1", "a/2", "a/2", "b/1", "b/1"]
    assert value["different"] == 0
    assert value["about"]["remembered"] == "nothing"
    assert value["about"]["prompts"] == f"3 prompts of {prompts}, first turn"


def test_settings_side_by_side(run: Runner, prompts: Path) -> None:
    flags = (
        "--speculate",
        "ngram-simple:n=2,m=3",
        "--speculate",
        "off",
        "--speculate",
        "suffix",
        "--repeat",
        2,
    )
    value = run.json("--prompts", prompts, *flags)
    assert value["settings"] == ["off", "ngram-simple:n=2,m=3", "suffix"]
    assert len(value["samples"]) == 3 * 3 * 2


def test_off_does_not_pay_for_what_a_head_reads(foredraft: Command, prompts: Path, tmp_path: Path) -> None:
    run = Runner(foredraft, gguf_factory.tiny_llama(tmp_path / "model.gguf", layers=3))
    head = gguf_heads.tiny_eagle3(tmp_path / "head.gguf")
    flags = ("--speculate", f"heads:model={head}", "--speculate", "suffix", "--limit", 1)
    value = run.json("--prompts", prompts, *flags)
    settings = ["off", f"heads:model={head}", "suffix"]
    assert value["settings"] == settings
    assert value["notes"] == []
    assert value["about"]["hidden states"] == f"kept for a head in {settings[1]}"
    assert "hidden states" not in run.json("--prompts", prompts, "--limit", 1)["about"]


def test_which_prompts(run: Runner, prompts: Path) -> None:
    def names(*flags: object) -> list[str]:
        found = run.json("--speculate", "off", *flags)["prompts"]
        return [entry["prompt"] for entry in found]

    assert names("--prompts", prompts, "--limit", 2) == ["a/1", "b/1"]
    assert names("--prompts", prompts, "--category", "b") == ["b/1"]
    assert names("--prompts", prompts, "--turns", 2) == ["a/1", "a/1#2", "a/2", "b/1"]
    shipped = load_prompts()
    assert names("--limit", 1) == [shipped[0].id]


def test_tokens_and_seed(run: Runner, prompts: Path) -> None:
    flags = ("--prompts", prompts, "--limit", 1, "--temperature", 1, "--seed", 5, "-n", 12)
    value = run.json(*flags)
    assert value["about"]["answers"] == "up to 12 tokens, temperature 1, seed 5"
    assert {sample["tokens"] for sample in value["samples"]} <= set(range(1, 13))
    assert value["different"] == 0


def test_what_does_not_fit_is_left_out_and_said(run: Runner, prompts: Path) -> None:
    long = json.dumps({"id": "long", "category": "a", "turns": ["word " * 300]})
    prompts.write_text(prompts.read_text() + "\n" + long)
    value = run.json("--prompts", prompts)
    assert value["notes"] == ["left out, because they do not fit into the context: long"]
    prompts.write_text(long)
    ran = run("--prompts", prompts)
    assert ran.code == 2
    assert "No prompt fits into the context." in ran.err


def test_nothing_is_remembered_unless_asked_for(run: Runner, prompts: Path, own_cache: Path) -> None:
    flags = ("--prompts", prompts, "--limit", 1)
    run.json(*flags)
    assert not (own_cache / "store").exists()
    assert run.json(*flags, "--remember")["about"]["remembered"] == "past outputs"
    assert (own_cache / "store").exists()


def test_a_drafter_that_cannot_be_used_is_a_note(run: Runner, prompts: Path) -> None:
    spec = "draft-model:model=/nonexistent.gguf"
    value = run.json("--prompts", prompts, "--limit", 1, "--speculate", spec)
    assert len(value["notes"]) == 1
    assert value["notes"][0].startswith(f"{spec}: drafter")


# --- what is written -----------------------------------------------------------------------------------


def test_the_tables_go_to_standard_output(run: Runner, prompts: Path) -> None:
    ran = run("--prompts", prompts)
    assert ran.code == 0
    assert "all prompts" in ran.out
    assert "ngram" not in ran.out
    assert "speedup" in ran.out


def test_files_of_every_kind(run: Runner, prompts: Path, tmp_path: Path) -> None:
    files = {kind: tmp_path / "out" / f"report.{kind}" for kind in ("json", "csv", "html", "svg")}
    flags = [
        word for kind, path in files.items() for word in ("--plot" if kind == "svg" else f"--{kind}", path)
    ]
    ran = run("--prompts", prompts, *flags)
    assert ran.code == 0
    assert "all prompts" in ran.out
    assert json.loads(files["json"].read_text())["settings"] == ["off", "auto"]
    assert len(list(csv.DictReader(files["csv"].read_text().splitlines()))) == 6
    assert files["html"].read_text().startswith("<!doctype html>")
    assert "<svg" in files["svg"].read_text()
    for path in files.values():
        assert f"Wrote {path}" in ran.err


def test_a_file_that_cannot_be_written_in_the_end_does_not_cost_the_others(
    run: Runner, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(report: object, kind: str, path: Path) -> None:
        if kind == "json":
            raise ConfigError(f"{path} cannot be written: No space left on device.")
        write_report(report, kind, path)  # type: ignore[arg-type]

    monkeypatch.setattr("foredraft.cli.bench.write_report", full)
    ran = run("--prompts", prompts, "--json", tmp_path / "a.json", "--csv", tmp_path / "a.csv")
    assert ran.code == 2
    assert "a.json cannot be written: No space left on device." in ran.err
    assert (tmp_path / "a.csv").read_text().startswith("prompt,")


def test_the_report_has_standard_output_to_itself(run: Runner, prompts: Path) -> None:
    ran = run("--prompts", prompts, "--csv", "-")
    assert ran.out.startswith("prompt,category,setting,")
    assert len(ran.out.splitlines()) == 1 + 6
    assert "all prompts" in ran.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--json", "-", "--csv", "-"), "Only one report"),
        (("--json", "/"), "is a folder"),
        (("--json", "/dev/null/report.json"), "is not a folder"),
        (("--plot", "plot.png"), "SVG"),
        (("--speculate", "nonesuch"), "'nonesuch'"),
        (("--category", "nonesuch"), "'nonesuch'"),
        (("--prompts", "nonesuch.jsonl"), "nonesuch.jsonl"),
        (("--repeat", 0), "--repeat"),
        (("--temperature", -1, "--limit", 1), "temperature"),
    ],
)
def test_what_cannot_be_done(run: Runner, flags: tuple[object, ...], said: str) -> None:
    ran = run(*flags)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_what_is_not_installed_is_said_before_measuring(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("foredraft.cli.bench.run_live", None)
    for flags in (("--html", tmp_path / "a.html"), ("--plot", tmp_path / "a.svg")):
        ran = run(*flags)
        assert ran.code == 2
        assert add_extra("bench") in ran.err


# --- how it ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("exact", "code"), [(True, 1), (False, 0)])
def test_tokens_that_differ_though_the_model_is_exact(
    run: Runner, prompts: Path, monkeypatch: pytest.MonkeyPatch, *, exact: bool, code: int
) -> None:
    def spoilt(completion: Completion) -> Sample:
        sample = original(completion)
        if completion.speculation.configured == "off":
            return sample
        return replace(sample, tokens=(*sample.tokens, 0), exact=exact)

    original = sides.sample_of
    monkeypatch.setattr(sides, "sample_of", spoilt)
    ran = run("--prompts", prompts)
    assert ran.code == code
    assert ("Not the same tokens as off: a/1, auto" in ran.out) is exact
    assert "3 of 3" in ran.out


WARM_UPS = 2


def stop_at(patch: pytest.MonkeyPatch, answer: int, number: signal.Signals) -> None:
    """Send a signal when so many answers to prompts have come; nothing more is answered then."""

    def interrupted(completion: Completion) -> Sample:
        answers.append(completion)
        if len(answers) == WARM_UPS + answer:
            signal.raise_signal(number)
        assert len(answers) <= WARM_UPS + answer
        return original(completion)

    answers: list[Completion] = []
    original = sides.sample_of
    patch.setattr(sides, "sample_of", interrupted)


STOPS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.mark.parametrize(("number", "code"), STOPS)
def test_stopped_it_reports_the_prompts_that_were_finished(
    run: Runner, prompts: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    """The second prompt was answered by one side alone, which compares nothing."""
    stop_at(monkeypatch, 4, number)
    before = signal.getsignal(number)
    file = prompts.with_suffix(".json")
    ran = run("--prompts", prompts, "--json", file)
    assert ran.code == code
    assert "Live benchmark (incomplete)" in ran.out
    assert "Note: stopped after 2 answers to 1 prompt of 3: the report covers only these" in ran.out
    assert ran.err.splitlines()[-1] == "Stopped."
    value = json.loads(file.read_text())
    assert value["complete"] is False
    assert [(sample["prompt"], sample["setting"]) for sample in value["samples"]] == [
        ("a/1", "off"),
        ("a/1", "auto"),
    ]
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(("number", "code"), STOPS)
def test_stopped_before_a_prompt_was_finished_there_is_nothing_to_report(
    run: Runner, prompts: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    stop_at(monkeypatch, 2, number)
    ran = run("--prompts", prompts)
    assert (ran.code, ran.out, ran.err.strip()) == (code, "", "Stopped.")


def test_a_run_to_the_end_is_complete(run: Runner, prompts: Path) -> None:
    value = run.json("--prompts", prompts, "--limit", 1)
    assert (value["complete"], value["title"]) == (True, "Live benchmark")


@pytest.mark.model
def test_the_default_model(
    foredraft: Command, model_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(shared_cache))
    flags = ("--limit", 2, "-n", 16, "-t", 1, "--repeat", 1, "--ctx", 512, "--json", "-")
    ran = foredraft("bench", model_path, *flags)
    assert ran.code == 0, ran.err
    value = json.loads(ran.out)
    assert len(value["prompts"]) == 4
    assert value["different"] == 0
    assert all(entry["speedup"] > 0 for entry in value["prompts"])
