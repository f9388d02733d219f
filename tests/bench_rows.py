"""Rows of benchmarks that nobody had to run."""

from __future__ import annotations

from typing import Any

from foredraft.bench.results import Row, Run, Sample


def row(
    prompt: str,
    setting: str,
    rate: float,
    *,
    repeat: int = 0,
    count: int = 11,
    tokens: tuple[int, ...] = (1, 2, 3),
    **fields: Any,
) -> Row:
    """A row of so many tokens per second; the prompt's category is the part before its slash."""
    sample = Sample(
        text=" ".join(map(str, tokens)),
        count=count,
        decode_ms=1e3 * (count - 1) / rate,
        tokens=tokens,
        **fields,
    )
    return Row(prompt, prompt.partition("/")[0], setting, repeat, sample)


def two_settings() -> list[Row]:
    """Two categories under off and auto, with a speedup of 2 and of 0.5."""
    drafted: dict[str, Any] = {
        "rounds": 5,
        "drafts": 4,
        "drafted": 8,
        "accepted": 5,
        "accepted_by_depth": (4, 1),
        "runs": (Run(2, "suffix"), Run(0), Run(3, "suffix")),
        "exact": True,
    }
    return [
        row("chat/1", "off", 10, rounds=10, spent_ms={"draft": 0.0, "other": 1000.0}, exact=True),
        row("chat/1", "auto", 20, spent_ms={"draft": 100.0, "other": 400.0}, **drafted),
        row("edit/1", "off", 40, rounds=10, spent_ms={"draft": 0.0, "other": 250.0}, exact=True),
        row("edit/1", "auto", 20, spent_ms={"draft": 200.0, "other": 300.0}, **drafted),
    ]
