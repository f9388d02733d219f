"""From samples to scores to summaries: what counts, what is compared, and what is left out."""

from __future__ import annotations

import pytest

from bench_rows import row, two_settings
from foredraft.bench.results import (
    ALL,
    SHORTEST,
    WITHOUT_LOOPS,
    Sample,
    Score,
    Summary,
    acceptance_by_depth,
    answered_by_all,
    broken_promises,
    loop_notes,
    loops,
    noise,
    scores,
    speedup_noise,
    summaries,
)


def score_of(found: list[Score], prompt: str, setting: str) -> Score:
    return next(score for score in found if (score.prompt, score.setting) == (prompt, setting))


def summary_of(found: list[Summary], category: str, setting: str) -> Summary:
    return next(summary for summary in found if (summary.category, summary.setting) == (category, setting))


def test_the_rate_leaves_out_the_first_token() -> None:
    assert Sample(text="", count=101, decode_ms=1000.0).rate == pytest.approx(100)
    assert Sample(text="", count=SHORTEST - 1, decode_ms=1000.0).rate is None
    assert Sample(text="", count=100, decode_ms=0.0).rate is None


def test_each_pass_is_compared_with_itself_and_the_median_counts() -> None:
    """The machine was half as fast in the first pass, and hit one side in the last."""
    rows = [
        row("chat/1", "off", 10, repeat=0),
        row("chat/1", "auto", 12, repeat=0),
        row("chat/1", "auto", 26, repeat=1),
        row("chat/1", "off", 20, repeat=1),
        row("chat/1", "off", 20, repeat=2),
        row("chat/1", "auto", 5, repeat=2),
    ]
    found = scores(rows, "off")
    assert score_of(found, "chat/1", "off").speedup == pytest.approx(1.0)
    assert score_of(found, "chat/1", "auto").speedup == pytest.approx(1.2)
    assert score_of(found, "chat/1", "auto").tokens_per_second == pytest.approx(26)
    assert score_of(found, "chat/1", "auto").passes == pytest.approx([1.2, 1.3, 0.25])
    assert noise(rows, "off") == pytest.approx(1.0)
    assert speedup_noise(found, "off") == pytest.approx(1.3 / 0.25 - 1)
    assert summary_of(summaries(found), ALL, "auto").worst_passes == pytest.approx([1.2, 1.3, 0.25])


def test_a_pass_that_some_setting_did_not_end_compares_nothing() -> None:
    whole = [
        row("chat/1", "auto", 12, repeat=0),
        row("chat/1", "off", 10, repeat=0),
        row("chat/2", "off", 10, repeat=0),
        row("chat/2", "auto", 12, repeat=0),
    ]
    begun = [row("chat/1", "off", 99, repeat=1)]
    found = answered_by_all([*whole, *begun], ["off", "auto"])
    assert [(each.prompt, each.setting) for each in found] == [
        ("chat/1", "off"),
        ("chat/2", "off"),
        ("chat/1", "auto"),
        ("chat/2", "auto"),
    ]
    assert {each.repeat for each in found} == {0}
    assert answered_by_all(begun, ["off", "auto"]) == []


def test_means_are_geometric_and_the_worst_prompt_has_a_name() -> None:
    found = summaries(scores(two_settings(), "off"))
    whole = summary_of(found, ALL, "auto")
    assert whole.speedup == pytest.approx(1.0)
    assert whole.worst == pytest.approx(0.5)
    assert whole.worst_prompt == "edit/1"
    assert whole.tokens_per_second == pytest.approx(20)
    assert whole.prompts == 2
    assert summary_of(found, "chat", "auto").speedup == pytest.approx(2.0)
    plain = summary_of(found, ALL, "off")
    assert whole.speedup == pytest.approx((whole.tokens_per_second or 0) / (plain.tokens_per_second or 1))


def test_the_order_is_that_of_the_rows_and_all_prompts_come_last() -> None:
    found = summaries(scores(two_settings(), "off"))
    assert [(summary.category, summary.setting) for summary in found] == [
        (category, setting) for category in ("chat", "edit", ALL) for setting in ("off", "auto")
    ]


def test_acceptance_and_time_are_sums_over_the_group() -> None:
    whole = summary_of(summaries(scores(two_settings(), "off")), ALL, "auto")
    assert whole.acceptance_rate == pytest.approx(10 / 16)
    assert whole.acceptance_length == pytest.approx(20 / 10)
    assert whole.ms_per_token == {"draft": pytest.approx(15.0), "other": pytest.approx(35.0)}


def test_what_nobody_measured_is_none() -> None:
    whole = summaries(scores([row("chat/1", "server", 10)], "off"))[-1]
    assert (whole.speedup, whole.worst, whole.worst_prompt) == (None, None, "")
    assert (whole.acceptance_rate, whole.acceptance_length) == (None, None)
    assert whole.ms_per_token == {}
    assert whole.tokens_per_second == pytest.approx(10)


def test_an_answer_too_short_for_a_rate_is_in_no_mean() -> None:
    rows = [*two_settings(), row("chat/2", "off", 10, count=2), row("chat/2", "auto", 99, count=2)]
    found = scores(rows, "off")
    assert score_of(found, "chat/2", "auto").speedup is None
    assert summary_of(summaries(found), "chat", "auto").speedup == pytest.approx(2.0)
    assert summary_of(summaries(found), "chat", "auto").prompts == 2


def test_tokens_are_compared_repeat_by_repeat() -> None:
    rows = [
        row("chat/1", "off", 10, repeat=0, tokens=(1, 2), exact=True),
        row("chat/1", "auto", 10, repeat=0, tokens=(1, 2), exact=True),
        row("chat/1", "off", 10, repeat=1, tokens=(1, 3), exact=True),
        row("chat/1", "auto", 10, repeat=1, tokens=(1, 3), exact=True),
    ]
    found = scores(rows, "off")
    assert not score_of(found, "chat/1", "auto").different
    assert broken_promises(found) == []
    rows[-1] = row("chat/1", "auto", 99, repeat=1, tokens=(1, 4), exact=True)
    found = scores(rows, "off")
    assert summaries(found)[-1].different == 1
    assert broken_promises(found) == [score_of(found, "chat/1", "auto")]


def test_only_a_claim_can_be_broken() -> None:
    rows = [row("chat/1", "off", 10, tokens=(1,)), row("chat/1", "auto", 10, tokens=(2,), exact=False)]
    found = scores(rows, "off")
    assert score_of(found, "chat/1", "auto").different
    assert broken_promises(found) == []


def test_texts_are_compared_where_token_ids_are_not_known() -> None:
    ours = Sample(text="yes", count=1, decode_ms=1.0, tokens=(5,))
    assert ours.same_as(Sample(text="yes", count=1, decode_ms=1.0))
    assert not ours.same_as(Sample(text="no", count=1, decode_ms=1.0))
    assert not ours.same_as(Sample(text="yes", count=1, decode_ms=1.0, tokens=(6,)))


def test_acceptance_by_depth_is_a_share_of_the_drafts() -> None:
    rows = [
        row("a/1", "auto", 10, drafts=3, accepted_by_depth=(3, 1)),
        row("a/2", "auto", 10, drafts=1, accepted_by_depth=(1, 1, 1)),
        row("a/3", "auto", 10),
    ]
    assert acceptance_by_depth(rows) == (1.0, 0.5, 0.25)
    assert acceptance_by_depth([row("a/3", "auto", 10)]) == ()


def test_a_category_named_all_is_its_own() -> None:
    found = summaries(scores([row("all/1", "off", 10), row("chat/1", "off", 40)], "off"))
    assert [summary.prompts for summary in found] == [1, 1, 2]


def test_noise_is_what_passes_of_the_same_setting_differ_by() -> None:
    rows = [
        row("a/1", "off", 10, repeat=0),
        row("a/1", "off", 11, repeat=1),
        row("a/2", "off", 30, repeat=0),
        row("a/2", "off", 20, repeat=1),
        row("a/3", "off", 10, repeat=0),
        row("a/3", "off", 10, repeat=1),
        row("a/1", "auto", 10, repeat=0),
        row("a/1", "auto", 90, repeat=1),
    ]
    assert noise(rows, "off") == pytest.approx(0.1)
    assert noise(rows[:1], "off") is None


LOOP = (*range(30), *range(50, 80), *range(50, 80), *range(50, 60))


@pytest.mark.parametrize(
    ("answer", "looping"),
    [
        (LOOP, True),
        ((*LOOP, 2), False),  # ended by itself, if 2 ends answers
        (LOOP[:-10], False),  # two copies of 30
        ((7,) * 64, True),
        ((7,) * 63, False),
        ((), False),
        (tuple(range(200)), False),
    ],
)
def test_what_loops(answer: tuple[int, ...], looping: bool) -> None:
    assert loops(answer) is looping


def test_figures_without_answers_that_loop() -> None:
    rows = [
        row("chat/1", "off", 10, tokens=LOOP),
        row("chat/1", "auto", 90, tokens=LOOP),
        row("edit/1", "off", 10),
        row("edit/1", "auto", 11),
        row("edit/2", "off", 10),
        row("edit/2", "auto", 9, tokens=LOOP),  # not what plain decoding says
    ]
    found = scores(rows, "off")
    assert {score.prompt for score in found if score.looping} == {"chat/1"}
    groups = [
        (summary.category, summary.prompts) for summary in summaries(found) if summary.setting == "auto"
    ]
    assert groups == [("chat", 1), ("edit", 2), (WITHOUT_LOOPS, 2), (ALL, 3)]
    assert summary_of(summaries(found), WITHOUT_LOOPS, "auto").speedup == pytest.approx(0.99**0.5)
    [note] = loop_notes(found)
    assert note.startswith("1 of 3 answers loop")
    assert note.endswith(": chat/1")


def test_no_second_figures_where_nothing_loops_or_everything_does() -> None:
    none = scores(two_settings(), "off")
    assert loop_notes(none) == []
    every = scores([row("chat/1", "off", 10, tokens=LOOP), row("chat/1", "auto", 20)], "off")
    assert loop_notes(every)
    for found in (none, every):
        assert WITHOUT_LOOPS not in {summary.category for summary in summaries(found)}
