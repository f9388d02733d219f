"""A score's figures: what is advised, what is written, what is drawn."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from foredraft.draft.passages import DEPTHS, Passage
from foredraft.draft.places import Place
from foredraft.draft.result import Result, as_dict, result_of, sentence
from foredraft.draft.result_plot import write_plot
from foredraft.draft.result_text import result_text
from foredraft.draft.rounds import Counts, survival
from foredraft.draft.score import Scorer, Tally
from foredraft.draft.trial import Gain, RoundTimes, Trial
from foredraft.errors import ConfigError

RIGHT = Place(agrees=True, probability=0.95, ratio=1.0, kl_pq=0.1, kl_qp=0.2, tv=0.0)
WRONG = Place(agrees=False, probability=0.4, ratio=0.5, kl_pq=1.0, kl_qp=2.0, tv=0.5)


class Told(Scorer):
    """A scorer that was told its figures: of drafts that are right in two places of three."""

    def __init__(self) -> None:
        self.tallies = {temperature: Tally(temperature) for temperature in (0.0, 0.8)}
        passage = Passage(tuple(range(100)), 4, 100, cut=True)
        for tally in self.tallies.values():
            tally.add(passage, [draft_from(passage, start) for start in range(4, 100)])


def draft_from(passage: Passage, start: int) -> list[Place]:
    return [WRONG if (start + depth) % 3 == 0 else RIGHT for depth in range(passage.room(start))]


def times(token: float) -> RoundTimes:
    """A machine on which eight rows take twice the time of one, and drafting a token `token` plain rounds."""
    drafting = tuple(token * length for length in range(DEPTHS + 1))
    return RoundTimes(10.0, tuple(1.0 + 0.125 * n + part for n, part in enumerate(drafting)), drafting)


def result(token: float, gain: Gain | None = None) -> Result:
    trial = Trial({0.0: times(token), 0.8: times(token)}, gain)
    return result_of("large", "small", {"scored on": "2 answers"}, Told(), trial)


def test_speeds_are_tokens_of_rounds_over_what_rounds_take() -> None:
    """At each length by what is accepted at each depth, not by one rate."""
    for rule in result(0.1).rules:
        for length, (tokens, speed) in enumerate(zip(rule.lengths, rule.speedups, strict=True), 1):
            assert speed == pytest.approx(tokens / (1.0 + 0.225 * length))
    [greedy] = [rule for rule in result(0.1).rules if rule.temperature == 0.0]
    assert greedy.lengths[0] == pytest.approx(1.5, abs=0.1)
    assert greedy.lengths[1] == pytest.approx(greedy.lengths[7], abs=0.1)  # the third is wrong
    assert greedy.best is not None
    assert greedy.best[0] == 2


def test_what_auto_gained_decides() -> None:
    """Whatever drafts in every round would do."""
    better, worse = result(9.0, Gain(1.08, 0.02, 12)), result(0.05, Gain(1.01, 0.02, 12))
    assert better.uses
    assert "auto gains by it here: it is 1.08 ± 0.02 times as fast as without it, over 12" in sentence(better)
    assert "reach 0." in sentence(better)
    assert not worse.uses
    assert "auto gains nothing by it here: it is 1.01 ± 0.02" in sentence(worse)
    assert as_dict(better)["auto"]["uses"] is True
    assert as_dict(worse)["auto"] | {"text": ""} == {
        "uses": False, "gain": 1.01, "error": 0.02, "answers": 12, "lengths": {"0": 2, "0.8": 2}, "text": "",
    }  # fmt: skip


def test_where_no_gain_could_be_told_rounds_decide() -> None:
    cheap, dear = result(0.05), result(0.9)
    assert cheap.uses
    assert not dear.uses
    assert "too few or too short" in sentence(cheap)
    assert as_dict(dear)["auto"]["lengths"] == {"0": 0, "0.8": 0}


def test_what_is_said_is_what_decides() -> None:
    """Whatever the price: a draft pays where the speed that is shown is above 1.03, and nowhere else."""
    for percent in range(1, 60):
        found = result(percent / 100)
        shown = [float(speed) for speed in re.findall(r"(\d\.\d\d) times plain", sentence(found))]
        assert len(shown) == 2
        assert found.uses == (max(shown) > 1.03)


def test_a_busy_machine_is_told() -> None:
    told = {}
    for spread in (0.1, 0.6):
        found = result(0.05)
        assert found.trial is not None
        trial = found.trial._replace(times={0.0: replace(times(0.05), spread=spread)})
        console = Console(width=100)
        with console.capture() as captured:
            console.print(result_text(replace(found, trial=trial)))
        told[spread] = " ".join(captured.get().split())
    assert "Plain rounds differ by 60 %: the machine is busy" in told[0.6]
    assert "busy" not in told[0.1]


def test_after_an_early_end_no_speed_is_told() -> None:
    found = result_of("large", "small", {}, Told(), None)
    assert not found.uses
    assert "stopped before" in sentence(found)
    assert {speed for rule in found.rules for speed in rule.speedups} == {None}
    assert as_dict(found)["times"] == []
    console = Console(width=100)
    with console.capture() as captured:
        console.print(result_text(found))
    assert "Tried here" not in captured.get()


def test_rounds_by_hand() -> None:
    """With drafts of two tokens a round takes the place that is wrong and the one before it."""
    passage = Passage(tuple(range(7)), 1, 7)
    places = [RIGHT, WRONG, RIGHT, RIGHT, WRONG, RIGHT]
    survivals = [survival("match", places[i : i + passage.room(i + 1)]) for i in range(6)]
    counts = Counts(2)
    counts.add(passage, survivals)
    assert counts.rounds == 3  # at 0, 2 and 5
    assert counts.reached == [3, 2]
    assert counts.accepted == [3, 1]
    assert counts.tokens == pytest.approx(1 + 4 / 3)
    assert counts.by_depth == [1.0, 0.5]
    assert counts.survival == pytest.approx([1.0, 1 / 3])


@pytest.mark.parametrize("width", [80, 60])
def test_the_tables_fit(width: int) -> None:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(result_text(result(0.05)))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in captured.get()


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_plot(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"score.{kind}"
    write_plot(result(0.05), file)
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG" if kind == "png" else b"<?xml")
    if kind == "svg":
        for text in ("small as a draft for large", "greedy", "block, T 0.8", "depth in the draft"):
            assert text in content.decode()
    write_plot(result(0.05), file)
    assert file.read_bytes() == content


def test_a_plot_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "score.svg").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_plot(result(0.05), tmp_path / "score.svg")


def test_the_object_is_json() -> None:
    text = json.dumps(as_dict(result(0.05)), allow_nan=False)
    assert json.loads(text)["rules"][0]["best_length"] >= 1
    json.dumps(as_dict(result_of("large", "small", {}, Told(), None)), allow_nan=False)
