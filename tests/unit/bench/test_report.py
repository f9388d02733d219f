"""Reports: what is derived from rows, and every form in which it is written."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from bench_rows import row, two_settings
from foredraft.bench.plots import check_plotting, main_plot, plots
from foredraft.bench.report import Report, Timeline, live_report, report_dict
from foredraft.bench.report_files import WRITERS, check_file, csv_text, json_text, report_html, write_report
from foredraft.bench.report_text import LEAST_NAME, report_text
from foredraft.bench.results import Run, Score
from foredraft.errors import ConfigError, MissingDependencyError
from foredraft.installation import add_extra

NASTY = "<b>$x_1$ & [red]co</b>"
"""A name that is markup in HTML, in matplotlib and in rich."""


def live() -> Report:
    return live_report(
        two_settings(),
        title="A live one",
        baseline="off",
        about={"model": "fake", "prompts": NASTY},
        notes=["something odd"],
    )


def replayed() -> Report:
    """What a replay knows: speedups and counts; no times, no samples."""
    found = [
        Score(prompt="chat/1", category="chat", setting="auto on steep", speedup=1.5, tokens=100, rounds=60),
        Score(prompt="edit/1", category="edit", setting="auto on steep", speedup=0.98, tokens=50, rounds=49),
    ]
    return Report(
        title="Replay",
        baseline="off",
        scores=found,
        facts={"auto on steep": {"attempts": "1.6 %", "bound": "1.60"}},
    )


ALL_KINDS = pytest.mark.parametrize("report", [live(), replayed()], ids=lambda report: report.title)


def printed(report: Report, width: int = 160) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(report_text(report))
    return out.getvalue()


def line_with(text: str, *words: str) -> str:
    return next(line for line in text.splitlines() if all(word in line for word in words))


@pytest.mark.parametrize("width", [160, 100, 80, 60, 40])
def test_no_figure_is_cut_off_in_a_narrow_terminal(width: int) -> None:
    """At 80 columns the settings' names had no room at all."""
    for report in (live(), replayed()):
        wide, narrow = printed(report, 400), printed(report, width)
        assert "…" not in narrow
        assert all(len(line) <= width for line in narrow.splitlines())
        for figure in re.findall(r"\d[\d,]*\.\d+|\d+ %|\d+ of \d+", wide):
            assert figure in narrow.replace("\n", " "), figure
        for word in " ".join(report.settings).split():
            assert word[:LEAST_NAME] in narrow or word not in wide


def test_where_there_is_room_a_table_is_one() -> None:
    text = printed(live(), 160)
    header = line_with(text, "all prompts", "tokens/s")
    assert "differ" in header
    assert header.index("tokens/s") < header.index("differ")
    assert len([line for line in text.splitlines() if line.startswith("all prompts")]) == 1
    assert len([line for line in printed(live(), 60).splitlines() if line.startswith("all prompts")]) > 1


# --- the value -----------------------------------------------------------------------------------------


def test_what_a_live_report_derives_from_its_rows() -> None:
    report = live()
    assert report.settings == ["off", "auto"]
    assert report.depths == {"auto": (1.0, 0.25)}
    assert report.timeline == Timeline("chat/1", "auto", (Run(2, "suffix"), Run(0), Run(3, "suffix")))
    assert report.broken == []


def test_the_timeline_is_of_the_answer_with_the_most_accepted_tokens() -> None:
    runs = (Run(4, "suffix"),)
    rows = [
        row("a/1", "off", 10),
        row("a/1", "auto", 10, runs=(Run(1, "suffix"),), accepted=1),
        row("a/2", "auto", 10, runs=runs, accepted=4),
        row("a/2", "other", 10, runs=(Run(9, "suffix"),), accepted=9),
    ]
    report = live_report(rows, title="", baseline="off", about={})
    assert report.timeline == Timeline("a/2", "auto", runs)
    assert live_report(rows[:1], title="", baseline="off", about={}).timeline is None


# --- JSON and CSV --------------------------------------------------------------------------------------


def test_the_json_object() -> None:
    value = json.loads(json_text(live()))
    assert (value["format"], value["version"]) == ("foredraft-bench", 1)
    assert value["about"] == {"model": "fake", "prompts": NASTY}
    assert value["settings"] == ["off", "auto"]
    assert value["different"] == 0
    assert [entry["prompt"] for entry in value["prompts"]] == ["chat/1", "chat/1", "edit/1", "edit/1"]
    assert value["summary"][-1]["setting"] == "auto"
    assert value["summary"][-1]["worst_prompt"] == "edit/1"
    assert value["acceptance_by_depth"] == {"auto": [1.0, 0.25]}
    sample = value["samples"][1]
    assert (sample["prompt"], sample["setting"], sample["repeat"]) == ("chat/1", "auto", 0)
    assert (sample["drafted"], sample["accepted"], sample["draft_ms"]) == (8, 5, 100.0)
    assert sample["tokens_per_second"] == pytest.approx(20)


@ALL_KINDS
def test_every_kind_is_json(report: Report) -> None:
    value = json.loads(json_text(report))
    assert value == json.loads(json.dumps(report_dict(report)))
    assert len(value["prompts"]) == len(report.scores)


def test_broken_promises_are_in_the_json_object() -> None:
    rows = [row("a/1", "off", 10, tokens=(1,)), row("a/1", "auto", 10, tokens=(2,), exact=True)]
    report = live_report(rows, title="", baseline="off", about={})
    value = report_dict(report)
    assert value["different"] == 1
    assert [(entry["prompt"], entry["setting"]) for entry in value["different_though_exact"]] == [
        ("a/1", "auto")
    ]
    assert "Not the same tokens as off: a/1, auto" in printed(report)
    assert "Not the same tokens" in report_html(report)


def test_a_line_of_csv_for_each_sample() -> None:
    lines = list(csv.DictReader(io.StringIO(csv_text(live()))))
    assert [(line["prompt"], line["setting"]) for line in lines] == [
        (row.prompt, row.setting) for row in two_settings()
    ]
    assert float(lines[1]["tokens_per_second"]) == pytest.approx(20)
    assert lines[3]["draft_ms"] == "200.0"


def test_a_replay_has_a_line_of_csv_for_each_prompt() -> None:
    lines = list(csv.DictReader(io.StringIO(csv_text(replayed()))))
    assert [(line["prompt"], line["speedup"]) for line in lines] == [("chat/1", "1.5"), ("edit/1", "0.98")]


# --- the terminal --------------------------------------------------------------------------------------


def test_the_tables_of_a_live_report() -> None:
    text = printed(live())
    assert NASTY in text
    assert "Note: something odd" in text
    whole = text[text.index("all prompts") :]
    assert line_with(whole, "auto").split() == [
        *("auto", "20.0", "1.00", "0.50", "edit/1", "62", "%", "2.00", "15.00", "35.00", "0", "of", "2"),
    ]
    assert line_with(whole, "off", "1.00").split() == [
        *("off", "20.0", "1.00", "–", "–", "1.00", "0.00", "62.50", "–"),
    ]
    assert line_with(text, "chat", "off")
    assert line_with(text, "2.00  chat/1")


def test_one_category_needs_no_table_of_its_own() -> None:
    report = live_report(two_settings()[:2], title="", baseline="off", about={})
    assert "category" not in printed(report)
    assert "By category" not in report_html(report)


def test_a_replay_shows_its_own_figures() -> None:
    text = printed(replayed())
    assert line_with(text, "attempts", "bound")
    assert line_with(text, "auto on steep", "1.6 %", "1.60")
    assert "ms" not in line_with(text, "all prompts").split()


# --- plots and HTML ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "titles"),
    [
        (live(), ["Speedup", "Acceptance by depth", "One answer, round by round"]),
        (replayed(), ["Speedup"]),
        (live_report(two_settings()[:1], title="", baseline="off", about={}), []),
    ],
    ids=["live", "replay", "off alone"],
)
def test_there_is_a_plot_of_what_was_measured(report: Report, titles: list[str]) -> None:
    assert [plot.title for plot in plots(report)] == titles


def test_a_plot_is_the_same_every_time_and_stands_alone() -> None:
    svg = main_plot(live())
    assert svg == main_plot(live())
    assert svg.startswith("<?xml")
    assert "currentColor" not in svg
    assert ">speedup over off<" in svg


def test_plots_on_a_page_take_its_colours_and_do_not_share_names() -> None:
    drawn = [plot.svg for plot in plots(live())]
    names = [name for svg in drawn for name in re.findall(r'\bid="([^"]*)"', svg)]
    assert len(names) == len(set(names))
    for svg in drawn:
        assert svg.startswith("<svg")
        assert "currentColor" in svg
        assert "<style" not in svg
        used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
        assert used <= set(names)


class Page(HTMLParser):
    """What a page consists of: its tags with their attributes, and whether they are closed in order."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@ALL_KINDS
def test_the_page_is_whole_and_fetches_nothing(report: Report) -> None:
    text = report_html(report)
    page = Page(text)
    assert page.open == []
    assert "<script" not in text
    fetched = [value for name, value in page.attributes if name in ("src", "href", "xlink:href", "srcset")]
    assert all(value and value.startswith("#") for value in fetched)
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_names_are_text_on_the_page_and_in_its_plots() -> None:
    rows = [
        replace(measured, prompt=NASTY, category=NASTY, setting=setting)
        for measured, setting in zip(two_settings()[:2], ("off", NASTY), strict=True)
    ]
    report = live_report(rows, title=NASTY, baseline="off", about={NASTY: NASTY}, notes=[NASTY])
    text = report_html(report)
    assert NASTY not in text
    assert "&lt;b&gt;$x_1$ &amp; [red]co&lt;/b&gt;" in text
    assert Page(text).open == []
    assert printed(report, width=400).count(NASTY) >= 4


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (check_plotting, lambda: report_html(live()), lambda: main_plot(live())):
        with pytest.raises(MissingDependencyError) as caught:
            draw()
        assert caught.value.hint == f"Install it with: {add_extra('bench')}"
    assert json_text(live())
    assert printed(live())


# --- files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_file_is_written(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / f"report.{kind}"
    write_report(live(), kind, path)
    assert path.read_text(encoding="utf-8") == WRITERS[kind](live())
    assert path.stat().st_mode & 0o444 == 0o444
    assert list(path.parent.iterdir()) == [path]


def test_a_place_where_one_may_not_write_is_found_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.json"
    own.touch()
    monkeypatch.setattr("os.access", lambda path, mode: path == own and mode == os.W_OK)
    check_file(own)  # a file can be added to where none can be made
    with pytest.raises(ConfigError, match=f"you may not write to {tmp_path}"):
        check_file(tmp_path / "other.json")


def test_a_path_that_cannot_become_a_file(tmp_path: Path) -> None:
    check_file(tmp_path / "not" / "there" / "yet.json")
    with pytest.raises(ConfigError, match="is a folder"):
        check_file(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not a folder"):
        check_file(tmp_path / "file" / "report.json")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_report(live(), "json", tmp_path / "file" / "report.json")


def test_the_worst_prompt_comes_with_what_it_was_in_each_pass() -> None:
    rows = [
        row("chat/1", setting, rate, repeat=repeat)
        for repeat, mine in enumerate((10, 12, 5))
        for setting, rate in (("off", 10), ("auto", mine))
    ]
    report = live_report(rows, title="Three passes", baseline="off", about={})
    assert "1.00 (0.50–1.20)  chat/1" in printed(report)
    assert "0.50  edit/1" in printed(live()), "one pass has no range"


def test_answers_that_loop_are_counted_with_and_without() -> None:
    loop = (7,) * 80
    rows = [
        row("chat/1", "off", 10, tokens=loop),
        row("chat/1", "auto", 40, tokens=loop),
        row("chat/2", "off", 10),
        row("chat/2", "auto", 10),
    ]
    report = live_report(rows, title="Live", baseline="off", about={}, notes=["odd"])
    console = Console(width=120, file=io.StringIO())
    console.print(report_text(report))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    overall, without = (line for line in text.splitlines() if line.startswith("auto"))
    assert "2.00" in overall
    assert "1.00" in without
    assert "without loops" in text
    assert "Note: 1 of 2 answers loop until their limit" in text
    page = report_html(report)
    assert "Without answers that loop" in page
    assert "1 of 2 answers loop" in page
    categories = [(summary["category"], summary["setting"]) for summary in report_dict(report)["summary"]]
    assert ("without loops", "auto") in categories
    assert "loop" not in report_html(live())
