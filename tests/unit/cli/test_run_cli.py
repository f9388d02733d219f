"""`foredraft run`: where the prompt comes from, what is printed where, and the JSON object."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import gguf_dflash
import gguf_factory
from command_line import Command
from foredraft import Engine, registry
from foredraft.backends.llamacpp import kernels
from foredraft.cli.render import StreamPrinter, closing_line
from foredraft.errors import RequestError
from foredraft.types import Completion, FinishReason, SamplingParams, SpeculationStats, Timings, Usage

LOOP = "print(index, add(index, index + 1))\n" * 4
"""A prompt that the tiny model goes on with in ways that a drafter foresees."""


class Runner:
    """`foredraft run` with the tiny model, one thread, a small context and few tokens."""

    def __init__(self, command: Command, model: Path) -> None:
        self._command = command
        self._model = model

    def __call__(self, *arguments: object, tokens: int = 8, stdin: bytes = b"") -> tuple[str, str]:
        """(standard output, standard error) of a run that must succeed."""
        ran = self._command(
            "run", "-m", self._model, "-t", 1, "-n", tokens, "--temp", 0, *arguments, stdin=stdin
        )
        assert ran.code == 0, ran.err
        return ran.out, ran.err

    def text(self, *arguments: object, tokens: int = 8, stdin: bytes = b"") -> str:
        return self(*arguments, tokens=tokens, stdin=stdin)[0]

    def json(self, *arguments: object, tokens: int = 8, stdin: bytes = b"") -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.text("--json", *arguments, tokens=tokens, stdin=stdin))
        return value


@pytest.fixture
def run(foredraft: Command, tiny: Path) -> Runner:
    return Runner(foredraft, tiny)


# --- the prompt ----------------------------------------------------------------------------------------


def test_every_way_to_give_the_prompt_is_the_same(run: Runner, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("What is it?")
    expected = run.text("--raw", "What is it?")
    assert expected.strip()
    assert run.text("--raw", "-p", "What is it?") == expected
    assert run.text("--raw", "-f", file) == expected
    assert run.text("--raw", stdin=b"What is it?") == expected
    assert run.text("--raw", "-f", "-", stdin=b"What is it?") == expected
    assert run.text("--raw", "What is that") != expected


def test_what_is_piped_in_comes_before_the_prompt(run: Runner, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("What is it?")
    expected = run.text("--raw", "A kiwi.\n\nWhat is it?")
    for given in (("What is it?",), ("-p", "What is it?"), ("-f", file), ("-f", "-", "-p", "What is it?")):
        assert run.text("--raw", *given, stdin=b"A kiwi.\n") == expected
    assert run.text("--raw", "What is it?") != expected


def test_the_model_as_a_word(foredraft: Command, run: Runner, tiny: Path) -> None:
    expected = run.text("Hello")
    for words in ((tiny, "Hello"), (tiny, "-p", "Hello")):
        assert foredraft("run", *words, "-t", 1, "-n", 8, "--temp", 0).out == expected
    assert foredraft("run", tiny, "-t", 1, "-n", 8, "--temp", 0, stdin=b"Hello").out == expected


def test_a_pulled_model_as_a_word(foredraft: Command, run: Runner, own_cache: Path) -> None:
    folder = own_cache / "models" / "owner" / "Parrot-GGUF"
    folder.mkdir(parents=True)
    gguf_factory.tiny_llama(folder / "Parrot-F32.gguf")
    expected = run.text("Hello")
    assert foredraft("run", "parrot-gguf", "Hello", "-t", 1, "-n", 8, "--temp", 0).out == expected
    assert (
        foredraft("run", "owner/Parrot-GGUF:F32", "-p", "Hello", "-t", 1, "-n", 8, "--temp", 0).out
        == expected
    )


def test_a_word_that_names_no_model_is_the_prompt(
    foredraft: Command, run: Runner, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foredraft.library.names.default_model", lambda: tiny)
    for word in ("Hello", "Hallöchen" * 40):
        assert foredraft("run", word, "--raw", "-t", 1, "-n", 8, "--temp", 0).out == run.text("--raw", word)


def test_raw_and_system(run: Runner) -> None:
    def prompt_tokens(*arguments: object) -> int:
        count = run.json(*arguments, tokens=1)["usage"]["prompt_tokens"]
        assert isinstance(count, int)
        return count

    raw = prompt_tokens("--raw", "Hello")
    templated = prompt_tokens("Hello")
    with_system = prompt_tokens("Hello", "--system", "Be kind.")
    assert raw < templated < with_system
    assert raw < prompt_tokens("--raw", "Hello", "--system", "Be kind. ") < with_system
    written = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert run.text("--raw", written) == run.text("Hello")


# --- the answer ----------------------------------------------------------------------------------------


def test_text_to_stdout_and_the_rest_to_stderr(run: Runner) -> None:
    out, err = run("Hello", tokens=6)
    value = run.json("Hello", tokens=6)
    assert out == value["text"] + "\n"
    line = err.strip()
    assert "\n" not in line
    for part in ("tokens/s · ", " · 6 tokens · ", " s · ", "exact"):
        assert part in line


def test_most_tokens(run: Runner) -> None:
    for count in (1, 5):
        value = run.json("--raw", LOOP, tokens=count)
        assert len(value["tokens"]) == count
        assert value["finish_reason"] == "length"


def test_stop(run: Runner) -> None:
    whole = run.json("--raw", LOOP, tokens=24)["text"]
    # The tiny model's text is noise: stop at something that it is known to write.
    stop = next(whole[i : i + 2] for i in range(4, len(whole)) if whole[i : i + 2].isascii())
    value = run.json("--raw", LOOP, "--stop", stop, "--stop", "never written", tokens=24)
    assert value["text"] == whole[: whole.index(stop)]
    assert value["finish_reason"] == "stop"


def test_the_same_seed_is_the_same_text(run: Runner) -> None:
    def sampled(seed: int) -> list[int]:
        tokens = run.json("Hello", "--temp", 1, "--seed", seed, "--top-k", 50, tokens=16)["tokens"]
        assert isinstance(tokens, list)
        return tokens

    assert sampled(7) == sampled(7)
    assert sampled(7) != sampled(8)


def test_colours_only_where_asked_for(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--raw", LOOP, "--speculate", "ngram-simple:n=1,m=4")
    monkeypatch.setenv("NO_COLOR", "1")  # what is said on the command line counts more
    coloured, legend = run(*arguments, "--color", tokens=48)
    assert "\x1b[32m" in coloured
    assert "■ ngram-simple" in legend
    for plain in (run.text(*arguments, tokens=48), run.text(*arguments, "--no-color", tokens=48)):
        assert "\x1b" not in plain
        assert plain == re.sub(r"\x1b\[\d*m", "", coloured)


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_a_terminal_is_coloured_unless_the_user_has_said_no(
    monkeypatch: pytest.MonkeyPatch, no_color: str, coloured: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    printer = StreamPrinter(Console(file=out, force_terminal=True))
    printer.write("drafted", "suffix")
    assert ("\x1b" in out.getvalue()) is coloured
    assert "drafted" in out.getvalue()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"estimated_speedup": 1.93}, " · 1.9× faster · "),
        ({"estimated_speedup": 1.04}, " · 4 % faster · "),
        ({"estimated_speedup": 0.97}, " · 3 % slower than plain · "),
        ({"estimated_speedup": 1.001}, " · as fast as plain · "),
        ({"estimated_speedup": 1.0}, " · no faster than plain (the difference is within noise) · "),
        ({"estimated_speedup": None}, " · speedup unknown (too few plain rounds to compare with) · "),
        (
            {"acceptance_rate": None, "reason": "speculation is turned off"},
            " · plain speed (nothing drafted: speculation is turned off) · ",
        ),
    ],
)
def test_the_closing_line_says_what_was_gained_or_why_not(changes: dict[str, Any], says: str) -> None:
    spec = SpeculationStats(
        configured="auto", active=True, reason=None, rounds=10, acceptance_rate=0.5, acceptance_length=2.0,
        estimated_speedup=2.0, drafters={}, accepted_by_depth=(), exact=True, exact_reason="measured",
    )  # fmt: skip
    completion = Completion(
        text="", tokens=(), origins=(), logprobs=(), finish_reason=FinishReason.STOP,
        usage=Usage(1, 20, 0, 10, 10), timings=Timings(1, 1.0, 20, 100.0, 20, 10),
        speculation=replace(spec, **changes),
    )  # fmt: skip
    assert says in closing_line(completion)
    assert "without" not in closing_line(completion)
    assert closing_line(completion, without="Foredraft's kernels").endswith(
        " · exact · without Foredraft's kernels: foredraft doctor"
    )


def test_kernels_that_were_left_out_are_named_at_the_end(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "are_missing", lambda: True)
    assert run("Hello")[1].rstrip().endswith("without Foredraft's kernels: foredraft doctor")
    monkeypatch.setattr(kernels, "are_missing", lambda: False)
    assert "kernels" not in run("Hello")[1]


def test_what_ended_an_answer_too_early_is_said(run: Runner) -> None:
    def ended(*arguments: object) -> str:
        return run("--raw", LOOP, "--ctx", 256, *arguments, tokens=1000)[1]

    assert "The answer was stopped because the context of 256 tokens is full." in ended("--ignore-eos")


def test_an_answer_that_repeats_itself_is_ended_and_that_is_said(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foredraft.engine.request.MIN_REPEATED_TOKENS", 64)
    loop = ("--raw", "a a a a a a a a", "--ignore-eos", "--ctx", 512)
    steered = ("--repetition-penalty", 0.05)  # the tiny model then stays with what it has said
    out, err = run(*loop, *steered, tokens=400)
    assert "it kept repeating itself; --no-stop-repetition lets it continue." in err
    assert run.json(*loop, *steered, tokens=400)["finish_reason"] == "repetition"
    whole = run.json(*loop, *steered, "--no-stop-repetition", tokens=400)
    assert whole["finish_reason"] == "length"
    assert whole["text"].startswith(out.rstrip("\n"))


def test_sampling_is_as_the_model_recommends_unless_told_otherwise(
    foredraft: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[SamplingParams] = []

    def generate(self: Engine, prompt: object, params: SamplingParams, **_: object) -> object:
        taken.append(params)
        raise RequestError("enough")

    monkeypatch.setattr(Engine, "stream", generate)
    recommended: dict[str, float] = {}
    monkeypatch.setattr("foredraft.backends.llamacpp.loading.recommended_in_gguf", lambda _: recommended)
    for found, flags, expected in (
        ({}, (), (0.7, 0.9, 0)),
        ({}, ("--temp", 0), (0.0, 0.9, 0)),
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, (), (0.6, 0.95, 20)),
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, ("--top-k", 0), (0.6, 0.95, 0)),
        ({"top_k": 64, "top_p": 0.95}, (), (1.0, 0.95, 64)),
        ({"repetition_penalty": 1.1}, (), (0.7, 0.9, 0)),
    ):
        recommended.clear()
        recommended.update(found)
        foredraft("run", "-m", tiny, "Hello", "-t", 1, "--json", *flags)
        params = taken.pop()
        assert (params.temperature, params.top_p, params.top_k) == expected
        assert params.stop_repetition


# --- with speculation and without ----------------------------------------------------------------------


def test_compare_shows_both_and_that_the_bytes_are_the_same(run: Runner) -> None:
    arguments = ("--raw", LOOP, "--speculate", "ngram-simple:n=1,m=4", "--compare", "--temp", 0.8)
    out, err = run(*arguments, tokens=48)
    lines = err.splitlines()
    assert lines[-3].startswith("with speculation ")
    assert lines[-2].startswith("plain ")
    assert lines[-1].endswith(f"· the same {len(out.encode()) - 1} bytes")
    compared = run.json(*arguments, tokens=48)["compared"]
    assert compared["same_bytes"] is True
    rates = compared["tokens_per_second"] / compared["plain_tokens_per_second"]
    assert compared["speedup"] == pytest.approx(rates)


def test_compare_needs_something_to_compare(foredraft: Command, run: Runner, tiny: Path) -> None:
    ran = foredraft("run", "-m", tiny, "Hello", "--compare", "--speculate", "off")
    assert ran.code == 2
    assert "needs speculation, which is off" in ran.err
    assert "too short to compare" in run("Hello", "--compare", tokens=1)[1]


def test_nothing_to_draft_says_no_more_than_it_knows(run: Runner) -> None:
    _, err = run("Hello", "--speculate", "ngram-mod", tokens=2)
    assert "nothing drafted" in err
    assert "None" not in err
    assert "nothing drafted: speculation is turned off" in run("Hello", "--speculate", "off")[1]


# --- the JSON object -----------------------------------------------------------------------------------


def test_the_keys_of_the_json_object(run: Runner) -> None:
    value = run.json("Hello")
    assert list(value) == ["text", "tokens", "origins", "finish_reason", "usage", "timings", "speculation"]
    assert set(value["usage"]) == {
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_tokens_details",
        "completion_tokens_details",
    }
    assert set(value["usage"]["completion_tokens_details"]) == {
        "reasoning_tokens",
        "accepted_prediction_tokens",
        "rejected_prediction_tokens",
    }
    assert set(value["usage"]["prompt_tokens_details"]) == {"cached_tokens"}
    assert set(value["timings"]) == {
        "prompt_n",
        "prompt_ms",
        "prompt_per_second",
        "predicted_n",
        "predicted_ms",
        "predicted_per_second",
        "draft_n",
        "draft_n_accepted",
    }
    assert set(value["speculation"]) == {field.name for field in fields(SpeculationStats)}
    assert {
        "configured",
        "active",
        "reason",
        "rounds",
        "acceptance_rate",
        "acceptance_length",
        "estimated_speedup",
        "drafters",
        "accepted_by_depth",
        "exact",
    } < set(value["speculation"])


def test_the_numbers_of_the_json_object_agree(run: Runner) -> None:
    value = run.json("--raw", LOOP, "--speculate", "ngram-simple:n=1,m=4", tokens=48)
    usage, timings, spec = value["usage"], value["timings"], value["speculation"]
    count = len(value["tokens"])
    assert usage["completion_tokens"] == timings["predicted_n"] == len(value["origins"]) == count
    assert usage["total_tokens"] == usage["prompt_tokens"] + count
    assert timings["prompt_n"] == usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    drafted = spec["drafters"]["ngram-simple"]
    assert set(drafted) == {"drafts", "drafted", "accepted", "ms"}
    accepted = sum(origin == "ngram-simple" for origin in value["origins"])
    assert 0 < accepted == drafted["accepted"] == timings["draft_n_accepted"]
    assert accepted == usage["completion_tokens_details"]["accepted_prediction_tokens"]
    assert accepted == sum(spec["accepted_by_depth"])
    assert drafted["drafted"] == timings["draft_n"] >= accepted
    assert usage["completion_tokens_details"]["rejected_prediction_tokens"] == drafted["drafted"] - accepted
    assert spec["acceptance_rate"] == pytest.approx(accepted / drafted["drafted"], abs=1e-3)
    # Every round commits one token of the target's own; the first token came from the prompt's forward.
    assert spec["rounds"] == count - accepted - 1
    assert spec["acceptance_length"] == pytest.approx((count - 1) / spec["rounds"], abs=1e-2)
    assert (spec["configured"], spec["active"], spec["reason"]) == ("ngram-simple:n=1,m=4", True, None)


def test_a_prediction_is_drafted(run: Runner, tmp_path: Path) -> None:
    expected = tmp_path / "expected.txt"
    expected.write_text(LOOP)
    value = run.json(
        "--raw", LOOP, "--prediction", expected, "--speculate", "prediction", "--ignore-eos", tokens=32
    )
    assert set(value["speculation"]["drafters"]) == {"prediction"}
    without = run.json("--raw", LOOP, "--speculate", "prediction", "--ignore-eos", tokens=32)
    assert without["timings"]["draft_n"] == 0
    assert value["timings"]["draft_n"] > 0


def test_log_probabilities(run: Runner) -> None:
    value = run.json("Hello", "--logprobs", 2, tokens=4)
    assert [entry["token"] for entry in value["logprobs"]] == value["tokens"]
    for entry in value["logprobs"]:
        assert entry["logprob"] < 0
        assert entry["top"][0][0] == entry["token"]  # greedy
        assert len(entry["top"]) == 2


@pytest.mark.parametrize(
    ("flags", "configured"),
    [
        ((), "auto"),
        (("--speculate", "off"), "off"),
        (("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4"), "ngram-simple:n=4"),
        (("--speculative-config", '{"method": "suffix", "num_speculative_tokens": 6}'), "suffix:max=6"),
    ],
)
def test_what_was_configured_is_said(run: Runner, flags: tuple[str, ...], configured: str) -> None:
    assert run.json("Hello", *flags, tokens=2)["speculation"]["configured"] == configured


def test_a_draft_model_by_each_dialect(run: Runner, tiny: Path) -> None:
    for flags in (("--draft", tiny, "-d", 4), ("-md", tiny, "--draft-max", 4)):
        value = run.json("Hello", *flags, tokens=12)
        assert value["speculation"]["configured"] == f"draft-model:model={tiny},max=4"
        assert value["timings"]["draft_n_accepted"] > 0  # it is the same model


def test_a_block_head_by_each_dialect(foredraft: Command, tmp_path: Path) -> None:
    target = gguf_dflash.tiny_cycles(tmp_path / "t.gguf", 6)
    head = gguf_dflash.tiny_dflash(tmp_path / "h.gguf", kind="markov", right=target)
    run = Runner(foredraft, target)
    vllm = json.dumps({"method": "dspark", "model": str(head), "num_speculative_tokens": 4})
    for flags in (
        ("-md", head, "--draft-max", 4),
        ("--spec-type", "draft-dspark", "-md", head, "--spec-draft-n-max", 4),
        ("--spec-type", "draft-dflash", "-md", head, "--spec-draft-n-max", 4),
        ("--speculative-config", vllm),
    ):
        value = run.json("Hello", "--raw", "--ignore-eos", *flags, tokens=24)
        assert value["speculation"]["configured"] == f"heads:model={head},max=4"
        assert value["timings"]["draft_n_accepted"] == value["timings"]["draft_n"] > 0


# --- what is remembered --------------------------------------------------------------------------------


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_remembering(run: Runner, own_cache: Path) -> None:
    run("Hello", "--no-remember", "--speculate", "suffix;ngram-cache")
    assert not (own_cache / "store").exists()
    run("Hello", "--speculate", "suffix;ngram-cache")
    names = files(own_cache / "store")
    assert {name.partition("-")[0] for name in names} == {"suffix", "ngram"}
    contents = {name: (own_cache / "store" / name).read_bytes() for name in names}
    run("Another one", "--no-remember", "--speculate", "suffix;ngram-cache")
    assert {
        name: (own_cache / "store" / name).read_bytes() for name in files(own_cache / "store")
    } == contents


# --- plugins -------------------------------------------------------------------------------------------


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An installed drafter that always proposes the last token again."""
    (tmp_path / "foredraft_again.py").write_text(
        "from foredraft.testing import ScriptedDrafter\n"
        "def create(context, options):\n"
        "    return ScriptedDrafter(lambda tokens: [tokens[-1]], name='again')\n"
    )
    info = tmp_path / "foredraft_again-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foredraft-again\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[foredraft.drafters]\nagain = foredraft_again:create\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._installed.cache_clear()
    yield "again"
    sys.modules.pop("foredraft_again", None)
    registry._installed.cache_clear()


def test_a_plugins_drafter_drafts(run: Runner, plugin: str) -> None:
    value = run.json("Hello", "--speculate", plugin, tokens=8)
    assert value["speculation"]["drafters"][plugin]["drafted"] > 0


# --- a failure on the way ------------------------------------------------------------------------------


def test_a_failure_while_generating(foredraft: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from foredraft.backends.llamacpp.model import LlamaCppModel
    from foredraft.errors import BackendError

    def forward(self: LlamaCppModel, batch: object) -> object:
        raise BackendError("the device is gone")

    monkeypatch.setattr(LlamaCppModel, "forward", forward)
    options = ("-t", 1, "-n", 4, "--ctx", 64, "--speculate", "off")
    monkeypatch.setattr("foredraft.backends.llamacpp.loading.probed", lambda model, *_, **__: model)
    ran = foredraft("run", tiny, "Hello", *options)
    assert (ran.code, ran.out) == (1, "\n")
    assert "Error: Generation failed: the device is gone" in ran.err
    ran = foredraft("run", tiny, "Hello", *options, "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["error"] == "the device is gone"


def test_stopped_by_the_user(foredraft: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object, text: str, origin: str = "") -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("foredraft.cli.render.StreamPrinter.write", interrupted)
    ran = foredraft("run", tiny, "Hello", "-t", 1, "-n", 4)
    assert ran.code == 130
    assert ran.err.endswith("Stopped.\n")
    assert "Traceback" not in ran.err


def test_events_are_shown_as_they_come(
    foredraft: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(
        "foredraft.cli.render.StreamPrinter.write", lambda self, text, origin="": shown.append(origin)
    )
    assert foredraft("run", tiny, "Hello", "-t", 1, "-n", 4, "--speculate", "off").code == 0
    assert shown == ["target"] * 5
