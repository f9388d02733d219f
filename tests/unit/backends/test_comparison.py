"""What the exactness probe compares: every kind of difference is found, in the time that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from foredraft.backends.comparison import (
    DEPTHS,
    MOST_ROWS,
    QUICK,
    Effort,
    compare,
    compared_depths,
)
from foredraft.backends.differences import Result
from foredraft.backends.passages import passages
from foredraft.backends.probe import verdict_of
from foredraft.backends.rewind import RewindingModel
from foredraft.testing import FakeModel
from foredraft.types import Logits, Rows
from recurrent_double import FakeRecurrentModel

ENOUGH = 63
VOCABULARY = 258
PLAIN_S = 0.004

Where = Callable[[Sequence[Rows], Rows], bool]
"""Whether rows of a batch come out differently."""

Which = Callable[[Rows], Sequence[int]]
"""Those of them that do, from 0 on."""


class OneByte(FakeModel):
    """One byte of the logits of rows (`which`; the first) is another one where `where` says so. A forward
    takes `plain_s` for each of its rows in virtual time.
    """

    def __init__(self, where: Where = lambda _batch, _rows: False, **options: object) -> None:
        settings = {"max_rows": 200, "context_length": 3000, "sequences": 1, **options}
        super().__init__(VOCABULARY, **settings)  # type: ignore[arg-type]
        self.where = where
        self.which: Which = lambda _own: (0,)
        self.plain_s = PLAIN_S
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def forward(self, batch: Sequence[Rows]) -> Logits:
        logits = super().forward(batch).copy()
        self.seconds += self.plain_s * sum(len(rows.tokens) for rows in batch)
        first = 0
        for rows in batch:
            if rows.logits and self.where(batch, rows):
                for row in self.which(rows):
                    logits.view(np.uint8)[first + row, 4 * 7] ^= 1
            first += rows.logits
        return logits


LONG = Effort(60.0)


def run(model: OneByte, effort: Effort = LONG, window: int = 0) -> Result:
    return compare(model, enough=ENOUGH, effort=effort, window=window, clock=model.now)


# --- what is found -------------------------------------------------------------------------------------


def test_an_exact_model_is_exact_for_all_that_was_compared_and_left_empty() -> None:
    model = OneByte(sequences=4)
    result = run(model)
    assert (result.differences, result.complete, result.together) == ([], True, True)
    assert result.exact == 129
    assert {2, 3, 4, 8, 16} < result.sizes
    assert result.depths == set(DEPTHS)
    assert len(result.passages) == 6
    assert model.cells == 0
    note = verdict_of(result, enough=ENOUGH).note
    assert "up to 129 rows are bit-identical at a depth of 8, 250 and 506 tokens (6 texts, " in note
    assert "beside other sequences" in note


@pytest.mark.parametrize("rows", [2, 3, 4, 8, 16, 33, 63])
def test_one_byte_in_forwards_of_one_size_only(rows: int) -> None:
    verdict = verdict_of(run(OneByte(lambda _, own: own.logits == rows)), enough=ENOUGH)
    assert verdict.rows == 1
    assert f"from {rows} rows on" in verdict.note
    compared = {33: 17 + 2, 63: 17 + 2 + 2}.get(rows, rows)
    assert f"1 of {4 * VOCABULARY * compared:,} bytes of the logits differ with {rows} rows" in verdict.note


def test_one_byte_with_more_rows_than_drafts_need_only_limits_them() -> None:
    verdict = verdict_of(run(OneByte(lambda _, own: own.logits > ENOUGH)), enough=ENOUGH)
    assert verdict.rows == ENOUGH
    assert "1 of" in verdict.note
    assert "129 rows" in verdict.note


def from_the_18th_on(own: Rows) -> Sequence[int]:
    return range(17, own.logits)


def the_last(own: Rows) -> Sequence[int]:
    return (own.logits - 1,)


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize(
    ("rows", "which"), [(33, from_the_18th_on), (63, from_the_18th_on), (63, the_last), (33, the_last)]
)
def test_late_rows_of_a_large_forward_are_compared(rows: int, which: Which, thorough: bool) -> None:
    model = OneByte(lambda _, own: own.logits == rows)
    model.which = which
    verdict = verdict_of(run(model, Effort(6e4, thorough=True) if thorough else LONG), enough=ENOUGH)
    assert verdict.rows == 1
    assert f"from {rows} rows on" in verdict.note


def test_the_last_row_of_129_limits_the_rows() -> None:
    model = OneByte(lambda _, own: own.logits == 129)
    model.which = the_last
    assert verdict_of(run(model), enough=ENOUGH).rows == ENOUGH


def test_a_thorough_comparison_compares_every_row() -> None:
    model = OneByte(lambda _, own: own.logits == 63)
    model.which = lambda _own: (40,)
    assert verdict_of(run(model, Effort(6e4, thorough=True)), enough=ENOUGH).rows == 1


@pytest.mark.parametrize("row", range(16))
@pytest.mark.parametrize("plain_s", [0.001, 0.05, 0.2])
def test_every_row_of_a_usual_draft_is_compared_however_slow_the_model_is(row: int, plain_s: float) -> None:
    model = OneByte(lambda _, own: own.logits == 16)
    model.which, model.plain_s = lambda _own: (row,), plain_s
    verdict = verdict_of(run(model, QUICK), enough=ENOUGH)
    assert verdict.rows == 1
    assert "from 16 rows on" in verdict.note


def test_other_cells_amid_a_large_forward_show_in_its_last_rows() -> None:
    """Row 40 of 63 has the right logits and writes a wrong cell."""

    class WrongCell(OneByte):
        wrong = 1 << 30

        def forward(self, batch: Sequence[Rows]) -> Logits:
            [own] = batch
            if len(own.tokens) == 63:
                self.wrong = own.start + 40
            elif own.start <= self.wrong:
                self.wrong = 1 << 30
            self.where = lambda _, own: own.start + own.logits > self.wrong + 1
            self.which = lambda own: range(max(0, self.wrong + 1 - own.start), own.logits)
            return super().forward(batch)

    assert verdict_of(run(WrongCell()), enough=ENOUGH).rows == 1


@pytest.mark.parametrize("number", range(6))
def test_one_byte_with_one_passage_only(number: int) -> None:
    """Weights meet other activations with each text."""
    passage = passages(FakeModel(VOCABULARY))[number]

    def where(_: Sequence[Rows], own: Rows) -> bool:
        return own.logits > 1 and list(own.tokens) == passage.rows(own.start, len(own.tokens))

    found = run(OneByte(where)).differences
    assert [difference.passage for difference in found] == [passage.name]


@pytest.mark.parametrize(("after", "depth"), [(100, 506), (270, 506), (512, 506)])
def test_one_byte_beyond_a_depth_only(after: int, depth: int) -> None:
    [found] = run(OneByte(lambda _, own: own.logits > 1 and own.start + len(own.tokens) > after)).differences
    assert found.depth == depth
    assert found.rows > 1


def test_a_difference_between_the_near_and_the_far_depth_only() -> None:
    [found] = run(OneByte(lambda _, own: own.logits > 1 and 200 < own.start < 400)).differences
    assert found.depth == 250


def test_a_single_row_of_another_kind_beyond_a_depth_is_found() -> None:
    """As llama.cpp with K and V both f16, past 512 cells."""
    verdict = verdict_of(run(OneByte(lambda _, own: own.logits == 1 and own.start >= 512)), enough=ENOUGH)
    assert verdict.rows == 1
    assert "at a depth of 506 tokens" in verdict.note


def test_a_row_that_differs_after_a_draft_only_is_found() -> None:
    """Its logits are right, the cells that it writes are not."""
    model = OneByte()
    written: list[int] = []

    def where(batch: Sequence[Rows], own: Rows) -> bool:
        del written[: len(written) if model.length(0) - len(own.tokens) not in written else 0]
        after = own.start in written
        if len(own.tokens) == 4:
            written.append(own.start + 4)
        return after and len(batch) == 1

    model.where = where
    [found] = run(model).differences
    assert found.rows == 8, "the forward that shows it"


@pytest.mark.parametrize("counts", [(1, 1), (4, 4), (3, 4)])
def test_one_byte_in_company_only(counts: tuple[int, int]) -> None:
    def where(batch: Sequence[Rows], own: Rows) -> bool:
        return len(batch) > 1 and own.seq == 1 and tuple(rows.logits for rows in batch)[:2] == counts

    for sequences in (2, 4):
        verdict = verdict_of(run(OneByte(where, sequences=sequences)), enough=ENOUGH)
        assert verdict.rows == 1
        assert "depends on what else is in a forward: 1 of" in verdict.note
        assert "beside another sequence" in verdict.note
    assert run(OneByte(where, sequences=1)).exact == 129, "there is no other sequence"


def test_a_shallow_row_beside_a_deep_one_is_compared() -> None:
    def where(batch: Sequence[Rows], own: Rows) -> bool:
        return own.start < 100 and any(rows.start > 500 for rows in batch)

    assert run(OneByte(where, sequences=2)).differences[0].beside


def test_not_a_number_is_compared_by_its_bits() -> None:
    def logits(_: Sequence[int]) -> Logits:
        return np.full(VOCABULARY, np.nan, np.float32)

    assert run(OneByte(logits=logits)).exact == 129


def test_a_sliding_window_is_passed() -> None:
    model = OneByte(lambda _, own: own.logits > 1 and own.start >= 1024)
    assert run(replace_where(model), window=1024).differences == []
    assert compared_depths(model, 1024)[-1] > 1024
    [found] = run(model, window=1024).differences
    assert found.depth > 1024


def replace_where(model: OneByte) -> OneByte:
    """The same model without differences."""
    return OneByte(context_length=model.info.context_length)


def test_a_window_within_the_usual_depths_needs_no_other_one() -> None:
    assert compared_depths(OneByte(), 128) == list(DEPTHS)


@pytest.mark.parametrize("context", [17, 20, 40, 300])
def test_a_short_context_is_compared_as_far_as_it_goes(context: int) -> None:
    result = run(OneByte(context_length=context))
    assert result.exact >= 16
    assert max(result.depths) == context - 17


@pytest.mark.parametrize(("batch", "exact"), [(1, 1), (2, 2), (3, 3), (7, 4), (12, 12)])
def test_no_more_rows_are_claimed_than_a_batch_holds(batch: int, exact: int) -> None:
    result = run(OneByte(max_batch=batch, sequences=2))
    assert result.exact >= min(exact, 4)
    assert result.exact <= batch


def test_a_recurrent_model_is_compared_from_snapshots() -> None:
    inner = FakeRecurrentModel(VOCABULARY, max_rows=200, context_length=3000, sequences=2)
    result = compare(RewindingModel(inner), enough=ENOUGH, effort=LONG, clock=inner.clock)
    assert (result.exact, result.together, result.differences) == (129, True, [])
    assert result.depths == set(DEPTHS)


# --- repeated cells ------------------------------------------------------------------------------------


def test_cells_are_repeated_rather_than_computed() -> None:
    asked: list[int] = []

    def longer(snapshot: object, length: int) -> object:
        assert isinstance(snapshot, bytearray)
        asked.append(length)
        return bytearray((bytes(snapshot) * length)[: 4 * length])

    model = OneByte()
    result = compare(model, enough=ENOUGH, effort=LONG, lengthen=longer, clock=model.now)
    assert (result.depths, result.differences, sorted(asked)) == (set(DEPTHS), [], [250, 506])
    furthest = min(DEPTHS) + MOST_ROWS
    ends = [batch[0].start + len(batch[0].tokens) for batch in model.forwards if not batch[0].logits]
    assert not [end for end in ends if furthest < end <= max(DEPTHS)]


@pytest.mark.parametrize("answer", [None, bytearray(b"no")])
def test_cells_that_cannot_be_repeated_are_computed(answer: object) -> None:
    model = OneByte()
    result = compare(model, enough=ENOUGH, effort=LONG, lengthen=lambda *_: answer, clock=model.now)
    assert (result.depths, result.differences) == (set(DEPTHS), [])


# --- time ----------------------------------------------------------------------------------------------


def test_the_time_is_kept() -> None:
    model = OneByte(sequences=4)
    model.plain_s = 0.001
    result = run(model, QUICK)
    assert not result.complete
    assert QUICK.seconds / 2 < model.seconds < 1.2 * QUICK.seconds
    assert {min(DEPTHS), max(DEPTHS)} <= result.depths


def test_what_is_needed_is_compared_however_slow_the_model_is() -> None:
    model = OneByte(lambda _, own: own.logits > 1 and own.start > 500)
    model.plain_s = 0.05
    result = run(model, QUICK)
    assert result.differences
    assert model.seconds < 60


def test_a_slow_model_has_more_time_but_bounded() -> None:
    model = OneByte()
    model.plain_s = 0.2
    result = run(model, QUICK)
    assert model.seconds < 60
    assert (result.complete, result.exact) == (False, 16)
    assert result.depths == {8}, "computing 500 tokens would take 100 s"
    verdict = verdict_of(result, enough=ENOUGH)
    assert verdict.cut
    assert "at a depth of 8 tokens (1 text, " in verdict.note
    assert "; not compared past 8: computing 506 tokens takes too long; " in verdict.note
    assert "doctor --thorough" in verdict.note


def test_a_needed_depth_that_was_left_out_is_tried_again_and_named() -> None:
    """Past a sliding window; all else is compared."""
    model = OneByte(context_length=9000)
    model.plain_s = 0.001
    result = run(model, Effort(5.0), window=8000)
    assert (result.exact, result.missed) == (129, {8024})
    verdict = verdict_of(result, enough=ENOUGH)
    assert verdict.cut
    assert "; not compared past 506: computing 8,024 tokens takes too long" in verdict.note
    assert not verdict_of(run(model, Effort(20.0), window=8000), enough=ENOUGH).cut


def test_a_thorough_comparison_takes_every_passage_depth_and_number_of_rows() -> None:
    model = OneByte(sequences=2, context_length=2200)
    model.plain_s = 1e-4
    told: list[str] = []
    result = compare(
        model, enough=ENOUGH, effort=Effort(600.0, thorough=True), clock=model.now, progress=told.append
    )
    assert (result.differences, result.complete) == ([], True)
    assert result.sizes >= set(range(2, 130))
    assert result.depths == {8, 250, 506, 1100, 2040}
    assert len(result.passages) == 6
    assert told[0].endswith(" 0%")
    assert len(set(told)) > 10


@pytest.mark.parametrize("rows", [19, 47, 128])
def test_only_a_thorough_comparison_finds_what_few_sizes_show(rows: int) -> None:
    where: Where = lambda _, own: own.logits == rows  # noqa: E731
    assert not run(OneByte(where)).differences
    model = OneByte(where)
    [found] = run(model, Effort(6e4, thorough=True)).differences[:1]
    assert found.rows == rows


def test_a_thorough_comparison_ends_when_its_time_is_over() -> None:
    model = OneByte()
    model.plain_s = 0.01
    result = run(model, replace(LONG, thorough=True))
    assert not result.complete
    assert model.seconds < 90
