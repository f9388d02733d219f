"""A score's figures: what is advised, what is written, what is drawn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from foredraft.draft.passages import DEPTHS, Passage
from foredraft.draft.places import Place
from foredraft.draft.result import Advice, Prices, Result, as_dict, result_of, sentence
from foredraft.draft.result_plot import write_plot
from foredraft.draft.result_text import result_text
from foredraft.draft.rounds import Counts, survival
from foredraft.draft.score import Scorer, Tally
from foredraft.errors import ConfigError
from foredraft.planner.cost import CostCurve
from foredraft.types import Load, Outcome, Round

RIGHT = Place(agrees=True, probability=0.95, ratio=1.0, kl_pq=0.1, kl_qp=0.2, tv=0.0)
WRONG = Place(agrees=False, probability=0.4, ratio=0.5, kl_pq=1.0, kl_qp=2.0, tv=0.5)


class Timed(Scorer):
    """A scorer that was told its figures: of drafts that are right in two places of three."""

    def __init__(self, token_ms: float) -> None:
        self.tallies = {temperature: Tally(temperature) for temperature in (0.0, 0.8)}
        self._token_s, self._plain_s = [token_ms / 1e3], [10.0 / 1e3]
        passage = Passage(tuple(range(100)), 4, 100, cut=True)
        for tally in self.tallies.values():
            tally.add(passage, [draft_from(passage, start) for start in range(4, 100)])


def draft_from(passage: Passage, start: int) -> list[Place]:
    return [WRONG if (start + depth) % 3 == 0 else RIGHT for depth in range(passage.room(start))]


def flat_curve() -> CostCurve:
    """A machine on which eight rows take twice the time of one."""
    curve = CostCurve()
    for turn in range(40):
        for rows, ms in ((1, 10.0), (1, 10.0), (2, 11.4), (4, 14.3), (9, 21.5)):
            curve.learn(Round(Load(1, 0, 0), rows, {}, ms, 0.0, ((1, Outcome(turn, (0,))),)))
    return curve


def result(token_ms: float) -> Result:
    return result_of("large", "small", {"scored on": "2 answers"}, Timed(token_ms), flat_curve())


def test_a_cheap_draft_is_advised_and_a_dear_one_is_not() -> None:
    cheap, dear = result(0.5), result(9.0)
    assert [advice.length > 0 for advice in cheap.advice] == [True, True]
    assert sentence(cheap).startswith("auto would use it here: drafts of ")
    assert [advice.length for advice in dear.advice] == [0, 0]
    assert sentence(dear).startswith("auto would not use it here: drafts of the best length reach 0.")
    assert "takes 0.90 plain steps; it would pay below 0." in sentence(dear)
    assert as_dict(cheap)["auto"]["uses"] is True
    assert as_dict(dear)["auto"]["uses"] is False


def test_the_price_at_which_a_draft_begins_to_pay() -> None:
    found = result(9.0)
    least = found.advice[0].worthwhile
    [greedy] = [rule for rule in found.rules if rule.temperature == 0.0]
    below, above = replace(found.prices, token=0.98 * least), replace(found.prices, token=1.02 * least)
    best = [max(p.speedup(n, k) for k, n in enumerate(greedy.lengths, 1)) for p in (below, above)]
    assert best[1] < 1.03 < best[0]


def test_a_draft_that_is_used_at_one_temperature_only() -> None:
    found = result(0.5)
    found = replace(found, advice=[found.advice[0], Advice(0.8, 0, 0.1, 1.0)])
    assert "and none at temperature 0.8" in sentence(found)


def test_what_no_price_could_mend() -> None:
    prices = Prices((1.0, *(1.0 + 2.0 * n for n in range(1, DEPTHS + 1))), 0.5, 10.0, 5.0)
    found = replace(
        result(5.0), prices=prices, advice=[Advice(0.0, 0, prices.worthwhile([1.5] * DEPTHS), 0.9)]
    )
    assert "would not pay if it were free" in sentence(found)


def test_a_draft_that_pays_only_if_it_stops_in_time() -> None:
    found = result(2.0)
    found = replace(found, advice=[Advice(0.0, 0, 0.01, 1.2)])
    assert "only where it is sure: drafts of the best length" in sentence(found)
    assert "1.20 if they always stopped in time" in sentence(found)


def test_the_ceiling_by_hand() -> None:
    """Of ten rounds with drafts of two, four accept nothing, three one token and three both."""
    counts = Counts(2, rounds=10.0, reached=[10.0, 6.0], accepted=[6.0, 3.0])
    prices = Prices((1.0, 1.5, 2.0), 0.1, 10.0, 1.0)
    cost = 4 * (1.0 + 0.1) + 3 * (1.5 + 0.2) + 3 * (2.0 + 0.2)
    assert prices.ceiling([counts]) == pytest.approx((4 * 1 + 3 * 2 + 3 * 3) / cost)
    assert prices.ceiling([counts]) > prices.speedup(counts.tokens, 2)


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
        console.print(result_text(result(0.5)))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in captured.get()


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_plot(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"score.{kind}"
    write_plot(result(0.5), file)
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG" if kind == "png" else b"<?xml")
    if kind == "svg":
        for text in ("small as a draft for large", "greedy", "block, T 0.8", "depth in the draft"):
            assert text in content.decode()
    write_plot(result(0.5), file)
    assert file.read_bytes() == content


def test_a_plot_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "score.svg").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_plot(result(0.5), tmp_path / "score.svg")


def test_the_object_is_json() -> None:
    text = json.dumps(as_dict(result(0.5)), allow_nan=False)
    assert json.loads(text)["rules"][0]["best_length"] >= 1
