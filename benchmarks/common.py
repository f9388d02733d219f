"""What the benchmarks share: prompts, and how a run is reported."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

OWN_PROMPTS = Path(__file__).parent / "prompts.jsonl"


@dataclass(frozen=True, slots=True)
class PromptCase:
    """One prompt: the first user message of a row."""

    id: str
    category: str
    text: str

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.text}]


def load_prompts(path: Path, limit: int = 0) -> list[PromptCase]:
    """Prompts of a JSONL file or of all of a folder's, in the form of benchmarks/prompts.jsonl.

    `limit` takes that many, evenly from all categories.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    cases = []
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            cases.append(PromptCase(row["id"], row["category"], row["turns"][0]))
    if not cases:
        sys.exit(f"There are no prompts in {path}.")
    return spread(cases, limit) if limit else cases


def spread(cases: Sequence[PromptCase], limit: int) -> list[PromptCase]:
    """`limit` cases, one category after the other in turn."""
    by_category: dict[str, list[PromptCase]] = {}
    for case in cases:
        by_category.setdefault(case.category, []).append(case)
    chosen: list[PromptCase] = []
    rank = 0
    while len(chosen) < min(limit, len(cases)):
        for group in by_category.values():
            if rank < len(group) and len(chosen) < limit:
                chosen.append(group[rank])
        rank += 1
    return chosen


def parser(description: str | None) -> argparse.ArgumentParser:
    """Arguments that every benchmark takes."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--model", default=None, help="GGUF file or pulled name; default model if absent")
    made.add_argument("--prompts", type=Path, default=OWN_PROMPTS, help="JSONL file, or a folder of them")
    made.add_argument(
        "--limit", type=int, default=0, help="use this many prompts, evenly from all categories"
    )
    made.add_argument("--threads", type=int, default=0)
    made.add_argument("--tokens", type=int, default=200)
    return made


def progress(done: int, total: int, what: str) -> None:
    """One line on standard error, rewritten where it is a terminal."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"[{done}/{total}] {what:<60}", end=end, file=sys.stderr, flush=True)


def by_category(ratios: Sequence[tuple[PromptCase, float]]) -> dict[str, dict[str, float]]:
    """Geometric mean and worst of a ratio, for each category and for all."""
    groups: dict[str, list[float]] = {}
    for case, ratio in ratios:
        groups.setdefault(case.category, []).append(ratio)
        groups.setdefault("all", []).append(ratio)
    return {
        name: {"geomean": round(geometric_mean(group), 4), "worst": round(min(group), 4), "n": len(group)}
        for name, group in groups.items()
    }


def print_table(table: dict[str, dict[str, float]]) -> None:
    """A category table in plain text."""
    print(f"{'category':<16}{'prompts':>8}{'geomean':>9}{'worst':>8}")
    for name, row in table.items():
        print(f"{name:<16}{row['n']:>8.0f}{row['geomean']:>9.3f}{row['worst']:>8.3f}")
