"""The line that says how far `foredraft draft make` is."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from foredraft.cli.draft_make import _Lines, time_left
from foredraft.draft.make.job import ANSWERS, FEATURES, TRAINING, Stage

LONG = "100,000 batches, right: 100.0% 100.0% 100.0%"
TEXTS = {ANSWERS: "100,000 answers, 25,600,000 tokens", FEATURES: "25,600,000 rows", TRAINING: LONG}


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("stage", [ANSWERS, FEATURES, TRAINING])
def test_it_fits_the_terminal(stage: str, width: int) -> None:
    out = io.StringIO()
    lines = _Lines(Console(file=out, width=width, force_terminal=True))
    lines.tell(Stage(stage, 1.0, TEXTS[stage], 7199.0))
    assert len(out.getvalue().rstrip("\r")) <= width - 1
    assert "\n" not in out.getvalue()
    assert "left" in out.getvalue() or width < 80


def test_without_a_terminal_it_is_a_line_now_and_then() -> None:
    out = io.StringIO()
    lines = _Lines(Console(file=out, width=80))
    for done in (0.1, 0.2, 1.0):
        lines.tell(Stage(TRAINING, done, LONG, 60.0))
    assert out.getvalue().count("\n") == 2


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0 s left"), (89.0, "89 s left"), (90.0, "2 min left"), (9000.0, "2.5 h")],
)
def test_the_time_that_is_left(seconds: float, words: str) -> None:
    assert words in time_left(seconds)
