"""The proposer for vLLM, called by a stand-in for vLLM."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from foredraft.drafters.suffix_store import describe
from foredraft.errors import ConfigError, ForedraftError, SpeculationStringError
from foredraft.scale.vllm import Hook, Proposer
from vllm_runner import Config, Device, Model, Parallel, Runner, Scheduler, Speculative, config

VOCABULARY = 64


def next_token(text: Sequence[int]) -> int:
    """A text that repeats itself, with a surprise now and then."""
    if len(text) % 11 == 0:
        return int(np.random.default_rng(text[-3:]).integers(VOCABULARY))
    return (7 * text[-1] + text[-2]) % 13


PROMPTS = [[1, 2, 3, 4, 5], [9, 8] * 40, [1, 2, 3, 4, 5], list(range(30)), [5] * 70]


def texts(speculate: str | None, longest: int = 16) -> dict[int, list[int]]:
    settings = config(longest=longest, speculate=speculate or "off")
    proposer = None if speculate is None else Proposer(settings)
    runner = Runner(settings, proposer, next_token)
    for name, prompt in enumerate(PROMPTS):
        runner.add(name, prompt, 60)
    return runner.finish()


@pytest.mark.parametrize("speculate", ["auto", "suffix", "suffix;recycle", "ngram-simple", "off"])
def test_texts_are_those_without_it(speculate: str) -> None:
    assert texts(speculate) == texts(None)


def test_drafts_are_accepted_and_counted() -> None:
    settings = config(speculate="suffix;recycle")
    proposer = Proposer(settings)
    runner = Runner(settings, proposer, next_token)
    runner.add(0, [1, 2, 3], 120)
    text = runner.finish()[0]
    stats = proposer.statistics()
    assert stats.configured == "suffix;recycle"
    assert not stats.notes
    assert sum(it.drafted for it in stats.drafters.values()) == runner.drafted
    assert sum(it.accepted for it in stats.drafters.values()) == sum(stats.accepted_by_depth)
    assert sum(stats.accepted_by_depth) == runner.accepted > 40
    assert stats.rounds < len(text) - 3 - 40


def test_no_draft_is_longer_than_asked_for() -> None:
    settings = config(longest=3, speculate="suffix")
    runner = Runner(settings, Proposer(settings), next_token)
    runner.add(0, [5] * 70, 100)
    longest = 0
    while runner.waiting or runner.running:
        runner.step()
        longest = max([longest, *(len(draft) for _, draft in runner.proposals)])
    assert longest == 3


def test_it_is_the_hook() -> None:
    hook: Hook = Proposer(config())
    hook.load_model(object())


def test_what_cannot_work_is_refused() -> None:
    good = config()
    wrong: list[tuple[Config, str]] = [
        (replace(good, speculative_config=None), "another hook"),
        (replace(good, speculative_config=Speculative(method="ngram")), "another hook"),
        (replace(good, scheduler_config=Scheduler(async_scheduling=True)), "asynchronous"),
        (replace(good, parallel_config=Parallel(2)), "pipeline"),
        (
            replace(good, speculative_config=Speculative(num_speculative_tokens_per_batch_size=[(1, 8, 3)])),
            "per_batch_size",
        ),
        (replace(good, additional_config={"foredraft": "auto"}), "JSON object"),
        (replace(good, additional_config={"foredraft": {"drafter": "suffix"}}), "'drafter'"),
        (config(speculate=3), "is a text"),
    ]
    for settings, words in wrong:
        with pytest.raises(ConfigError, match=words) as caught:
            Proposer(settings)
        assert caught.value.hint


@pytest.mark.parametrize("name", ["draft-model:model=m.gguf", "heads", "grammar", "prediction", "suffx"])
def test_drafters_that_need_more_than_the_text_are_refused(name: str) -> None:
    with pytest.raises(SpeculationStringError) as caught:
        Proposer(config(speculate=name))
    assert caught.value.hint


def test_ids_that_are_no_tokens_are_never_drafted() -> None:
    settings = config(speculate="suffix;recycle", vocabulary=VOCABULARY)
    proposer = Proposer(settings)
    runner = Runner(settings, proposer, lambda text: (text[-1] + 1) % 20)
    image = [5, 6, 7, 999, 999, 999, -1, 8]
    runner.add(0, image * 6, 60)
    while runner.waiting or runner.running:
        runner.step()
        assert all(0 <= token < VOCABULARY for _, draft in runner.proposals for token in draft)
    assert not proposer.statistics().notes


def test_nothing_is_drafted_after_the_end_of_a_text() -> None:
    settings = config(speculate="suffix")
    settings = replace(settings, model_config=Model(hf_config=SimpleNamespace(eos_token_id=[4, 9])))
    proposer = Proposer(settings)
    tokens = np.full((8, 256), 4, np.int32)
    lengths = np.full(8, 20, np.int32)
    assert proposer.propose([[4]], lengths, tokens) == [[]]
    tokens[0] = 3
    assert proposer.propose([[3]], lengths, tokens) != [[]]


def test_an_error_ends_drafting_and_not_vllm(caplog: pytest.LogCaptureFixture) -> None:
    proposer = Proposer(config())
    with caplog.at_level(logging.ERROR, "vllm.foredraft"):
        assert proposer.propose([[1]], None, None) == [[]]  # type: ignore[arg-type]
    assert "proposes nothing any more" in caplog.text
    stats = proposer.statistics()
    assert not stats.active
    assert stats.reason is not None
    assert "an error" in stats.reason


def test_the_statistics_come_into_vllms_log(caplog: pytest.LogCaptureFixture) -> None:
    settings = config(speculate="suffix")
    proposer = Proposer(settings)
    runner = Runner(settings, proposer, next_token)
    runner.add(0, [5] * 70, 60)
    runner.finish()
    with caplog.at_level(logging.INFO, "vllm.foredraft"):
        proposer.close()
        proposer.close()
    assert caplog.text.count("acceptance_rate") == 1
    assert "suffix: drafts" in caplog.text


@pytest.mark.parametrize(
    ("device", "speculate", "warned"),
    [("cpu", "auto", True), ("cpu", "off", False), ("cuda", "auto", False)],
)
def test_it_says_what_vllm_gets_wrong_on_processors(
    device: str, speculate: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(config(speculate=speculate), device_config=Device(device))
    with caplog.at_level(logging.WARNING, "vllm.foredraft"):
        Proposer(settings)
    assert ("every request has temperature 0" in caplog.text) == warned


ENDS = """
import sys
from multiprocessing import get_context
from foredraft.scale.vllm import Proposer
from vllm_runner import Runner, config

def serve(folder):
    settings = config(speculate="suffix", store=folder)
    runner = Runner(settings, Proposer(settings), lambda text: (7 * text[-1] + 1) % 13)
    runner.add(0, [1, 2, 3], 40)
    runner.finish()

if sys.argv[2] == "main":
    serve(sys.argv[1])
else:
    child = get_context(sys.argv[2]).Process(target=serve, args=(sys.argv[1],))
    child.start()
    child.join()
"""


@pytest.mark.parametrize("process", ["main", "fork"])
def test_past_outputs_are_kept_by_a_process_that_ends_without_a_word(process: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDS, str(tmp_path / "store"), process]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert not done.stderr
    [stored] = describe(tmp_path / "store")
    assert stored.outputs == 1
    assert stored.tokens >= 43


def test_errors_are_foredrafts() -> None:
    """vLLM shows them by `str`, in an error of its own."""
    with pytest.raises(ForedraftError) as caught:
        Proposer(config(speculate="heads"))
    assert "hidden states" in str(caught.value)
    assert "--speculative-config" in str(caught.value)
