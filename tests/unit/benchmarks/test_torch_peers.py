"""Foredraft beside transformers: figures from answers with given times, and the sides on a tiny model."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import torch_factory
from foredraft.bench.results import ALL, Row, Sample
from foredraft.types import SamplingParams
from torch_cases import greedy, load, reference
from torch_peers_report import (
    ASSISTED,
    AUTO,
    LOOKUP,
    OFF,
    PLAIN,
    as_markdown,
    demands,
    different,
    means,
    rates,
    report,
    setting_of,
    worst,
)
from torch_peers_sides import (
    Clock,
    TransformersAnswer,
    TransformersSide,
    load_side,
    pruned_folder,
    weights_folder,
)

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()


def answer(
    side: str, rate: float, *, prompt: str = "a/1", again: int = 0, tokens: tuple[int, ...] = (), **more: Any
) -> Row:
    """Eleven tokens, ten of them at so many a second, after a second of prompt."""
    sample = Sample(text="", count=11, decode_ms=1e4 / rate, prompt_ms=1e3, tokens=tokens or (1, 2), **more)
    return Row(prompt, prompt.partition("/")[0], side, again, sample)


ROWS = [
    *(answer(PLAIN, rate, again=again) for again, rate in enumerate((10.0, 8.0, 5.0))),
    *(answer(OFF, rate, again=again) for again, rate in enumerate((20.0, 16.0, 1.0))),
    answer(PLAIN, 10.0, prompt="b/1"),
    answer(OFF, 5.0, prompt="b/1"),
]


def test_how_it_was_measured_counts_as_people_do() -> None:
    one = setting_of("fp32", threads=1, tokens=64, repeat=1, every=3)
    assert one == "fp32, 1 thread, 64 tokens an answer, 1 pass, the draft model keeps one layer in 3"
    assert ", 2 threads, 1 token an answer, 3 passes," in setting_of(
        "bf16", threads=2, tokens=1, repeat=3, every=2
    )


# --- figures -------------------------------------------------------------------------------------------


def test_the_best_pass_counts_and_the_median_is_told() -> None:
    assert rates(ROWS, "decode", "best")["a", "a/1"] == pytest.approx({PLAIN: 10.0, OFF: 20.0})
    assert rates(ROWS, "decode", "median")["a", "a/1"] == pytest.approx({PLAIN: 8.0, OFF: 16.0})


def test_a_whole_answer_takes_its_prompt_too() -> None:
    found = rates(ROWS, "whole", "best")["a", "a/1"]
    assert found == pytest.approx({PLAIN: 11 / 2.0, OFF: 11 / 1.5})


def test_categories_and_all_have_geometric_means() -> None:
    found = means(rates(ROWS, "decode", "best"))
    assert found["b"] == pytest.approx({PLAIN: 10.0, OFF: 5.0})
    assert found[ALL] == pytest.approx({PLAIN: 10.0, OFF: 10.0})
    assert means({}) == {}


def test_a_prompt_that_some_side_has_no_rate_for_is_left_out() -> None:
    short = Row("c/1", "c", OFF, 0, Sample(text="", count=2, decode_ms=1.0))
    found = rates([*ROWS, answer(PLAIN, 9.0, prompt="c/1"), short], "decode", "best")
    assert set(found) == {("a", "a/1"), ("b", "b/1")}


def test_the_worst_prompt_is_measured_by_the_sides_own_off() -> None:
    rows = [*ROWS, answer(AUTO, 19.0), answer(AUTO, 9.0, prompt="b/1"), answer(LOOKUP, 7.0)]
    rows += [answer(LOOKUP, 20.0, prompt="b/1")]
    for side, ratio in ((AUTO, 0.95), (LOOKUP, 0.7)):
        low = worst(rows, side)
        assert low is not None
        assert low[0] == pytest.approx(ratio)
        assert low[1] == "a/1"


@pytest.mark.parametrize(
    ("off", "auto", "lookup", "verdicts"),
    [
        (15.5, 15.5, 11.0, ["met", "met", "met"]),
        (14.9, 13.0, 11.0, ["missed", "missed", "missed"]),
        (20.0, 19.0, 16.0, ["met", "missed", "missed"]),
    ],
)
def test_demands_are_met_or_missed(off: float, auto: float, lookup: float, verdicts: list[str]) -> None:
    speeds = {PLAIN: 10.0, LOOKUP: lookup, ASSISTED: 4.0, OFF: off, AUTO: auto}
    found = demands([answer(side, rate) for side, rate in speeds.items()])
    assert [demand.verdict for demand in found] == verdicts
    assert found[1].detail == LOOKUP


def test_what_was_not_measured_is_not_called_missed() -> None:
    found = demands([answer(PLAIN, 10.0)])
    assert [demand.verdict for demand in found] == ["not measured"] * 3


def test_other_texts_are_counted_by_prompt() -> None:
    rows = [*ROWS, answer(AUTO, 9.0, tokens=(1, 3)), answer(AUTO, 9.0, prompt="b/1")]
    assert different(rows, OFF) == {PLAIN: (0, 2), OFF: (0, 2), AUTO: (1, 2)}


def test_the_page_has_every_table_and_the_json_every_answer() -> None:
    rows = [*ROWS, answer(AUTO, 10.0, drafted=4, accepted=1), answer(AUTO, 10.0, prompt="b/1")]
    page = as_markdown(rows, "fp32, 1 threads")
    assert "| Foredraft off ÷ transformers plain | ≥ 1.5 | 1.00 | missed |  |" in page
    assert "| all | 2 | 10.0 | 10.0 | 10.0 | 1.00 | 1.00 | 1.00 |" in page
    assert f"| {AUTO} | 0.50 (a/1) | 25% | 0 of 2 | 0 of 2 |" in page
    written = json.loads(json.dumps(report(rows, "fp32")))
    assert len(written["answers"]) == len(rows)
    assert written["demands"][0]["verdict"] == "missed"


# --- sides ---------------------------------------------------------------------------------------------


def test_the_clock_begins_with_the_first_token() -> None:
    times = iter([3.0, 4.0, 7.0])
    clock = Clock(lambda: next(times))
    for piece in ("prompt", "one", "two", "three"):
        clock.put(piece)
    clock.end()
    assert (clock.first, clock.last) == (3.0, 7.0)


def test_transformers_pause_between_two_tokens() -> None:
    """Turns of no time end after each token."""
    said: list[int] = []

    def generate(clock: Clock) -> torch.Tensor:
        clock.put("prompt")
        for token in (7, 8, 9):
            said.append(token)
            clock.put(token)
        return torch.tensor([[1, 2, 7, 8, 9]])

    answer = TransformersAnswer(generate, 2)
    assert said == []
    samples = []
    for number in range(4):
        samples.append(answer.go_on(0.0))
        assert len(said) == min(number + 1, 3)
        time.sleep(0.2)  # somebody else's turn
    assert samples[:3] == [None] * 3
    assert samples[3] is not None
    assert samples[3].tokens == (7, 8, 9)
    assert samples[3].prompt_ms + samples[3].decode_ms < 200


def test_what_transformers_raise_is_raised() -> None:
    def generate(clock: Clock) -> torch.Tensor:
        clock.put("prompt")
        raise ValueError("no weights")

    with pytest.raises(ValueError, match="no weights"):
        TransformersAnswer(generate, 2).go_on(1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_factory.make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", num_hidden_layers=5)


def test_transformers_is_timed_while_it_says_what_it_always_says(folder: Path) -> None:
    source, prompt = reference(folder), [5, 6, 7, 5, 6, 7, 5]
    expected = greedy(source, prompt, 12)
    for how in ({}, {"prompt_lookup_num_tokens": 3}, {"assistant_model": reference(folder)}):
        side = TransformersSide("plain", source, lambda _: prompt, **how)
        sample = side.answer([], SamplingParams(max_tokens=12))
        assert list(sample.tokens) == expected, how
        assert sample.count == len(expected)
        assert sample.prompt_ms > 0
        assert sample.decode_ms > 0


def test_a_pass_does_not_find_the_prompts_of_the_one_before(folder: Path) -> None:
    side = load_side("mine", "off", folder, threads=1, context_length=256, probe=False, dtype="fp32")
    read: list[int] = []
    side.engine.on_finish = lambda _, event: read.append(event.timings.prompt_n)
    for _ in range(2):
        side.restart()
        for _ in range(2):
            side.answer([{"role": "user", "content": "How are you today?"}], SamplingParams(max_tokens=4))
    side.close()
    assert read[0] > read[1], "within a pass prompts are found in the prefix cache"
    assert read[2:] == read[:2]


def test_a_folder_needs_no_conversion(folder: Path, tmp_path: Path) -> None:
    assert weights_folder(folder, tmp_path) == folder
    assert weights_folder(folder / "config.json", tmp_path) == folder


# --- the draft model -----------------------------------------------------------------------------------


def test_the_pruned_copy_is_the_model_with_those_layers_only(folder: Path, tmp_path: Path) -> None:
    copy = pruned_folder(folder, tmp_path / "copy", 2)
    whole, pruned = reference(folder), reference(copy)
    whole.model.layers = torch.nn.ModuleList(whole.model.layers[index] for index in (0, 2, 4))
    assert pruned.config.num_hidden_layers == 3
    ids = torch.tensor([[3, 5, 8, 13]])
    with torch.inference_mode():
        assert torch.equal(pruned(ids, use_cache=False).logits, whole(ids, use_cache=False).logits)
    target, draft = load(folder), load(copy)
    assert draft.info.vocab_hash == target.info.vocab_hash
    draft.close()
    target.close()


def test_lists_with_an_entry_for_each_layer_are_cut_too(tmp_path: Path) -> None:
    source = torch_factory.make_model(tmp_path / "source", "smollm3")
    pruned = json.loads((pruned_folder(source, tmp_path / "copy", 3) / "config.json").read_text())
    whole = json.loads((source / "config.json").read_text())
    assert pruned["no_rope_layers"] == [whole["no_rope_layers"][index] for index in (0, 3)]
    assert len(pruned["layer_types"]) == 2
    assert load(tmp_path / "copy").info.settings["forward"] == "lean"


def test_a_folder_with_something_in_it_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(Exception, match="exit status 1"):
        pruned_folder(folder, tmp_path, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
