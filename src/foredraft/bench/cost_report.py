"""What a measured cost curve means: tokens per second, and how much of a draft must be right for it to pay.

A draft of k tokens, each right with probability p given those before it, commits 1 + p + … + pᵏ tokens in a
forward of 1 + k rows (Leviathan et al. 2023, arXiv 2211.17192, equation 1). Against plain decoding it pays
where that is at least V(1 + k)/V(1). The drafter's own time is left out: a model-free one takes next to none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from foredraft.bench.cost_measure import Measurement
from foredraft.bench.curves import Curve
from foredraft.bench.report_text import FigureTable
from foredraft.engine.profile_store import Profile, ProfileKey

TYPICAL_DEPTH = 512
"""Tokens in the KV cache (a prompt and half an answer) of the one curve that stands for a profile."""

BUSY = 1.3
"""A machine whose usual plain forward takes this many times the shortest one had other things to do."""

_HALVINGS = 50


@dataclass(frozen=True, slots=True)
class CostPoint:
    """A forward of `rows` rows: `ratio` is V(rows)/V(1), `draft` the tokens drafted (rows - 1).

    `tokens_per_second` if all of them are accepted. `break_even` is the least acceptance p with which the
    draft pays; None where even p = 1 does not, and for plain decoding.
    """

    rows: int
    ms: float
    ratio: float
    tokens_per_second: float
    draft: int
    break_even: float | None


def break_even(draft: int, ratio: float) -> float | None:
    """The smallest p in [0, 1] with 1 + p + … + p^draft ≥ ratio, or None."""
    if ratio > draft + 1:
        return None
    if ratio <= 1:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if sum(middle**i for i in range(draft + 1)) >= ratio:
            high = middle
        else:
            low = middle
    return high


def cost_points(sizes: Mapping[int, float]) -> list[CostPoint]:
    """The points of one depth's curve (rows → milliseconds)."""
    single = sizes[1]
    return [
        CostPoint(
            rows=rows,
            ms=ms,
            ratio=ms / single,
            tokens_per_second=1e3 * rows / ms,
            draft=rows - 1,
            break_even=break_even(rows - 1, ms / single) if rows > 1 else None,
        )
        for rows, ms in sorted(sizes.items())
    ]


def best_chain(points: Sequence[CostPoint]) -> int:
    """The draft length with the most tokens per second if all of it is accepted; 0 for plain decoding."""
    return max(points, key=lambda point: point.tokens_per_second).draft


# --- table ---------------------------------------------------------------------------------------------


HEADINGS = ("n", "ms", "V(n)/V(1)", "tokens/s if\nall accepted", "draft", "pays from")


def cost_tables(measurement: Measurement) -> Iterator[RenderableType]:
    """What there is to see in a terminal: a table for each depth, and what else was found."""
    for depth, sizes in measurement.profile.curve.items():
        title = Text(f"{depth:,} tokens in the KV cache", style="bold")
        yield Group(title, _table(cost_points(sizes)))
    yield Group(*map(Text, _remarks(measurement)))


def _table(points: Sequence[CostPoint]) -> FigureTable:
    rows = [
        (
            str(point.rows),
            f"{point.ms:.2f}",
            f"{point.ratio:.2f}",
            f"{point.tokens_per_second:.1f}",
            str(point.draft or "–"),
            _acceptance(point),
        )
        for point in points
    ]
    best = best_chain(points)
    bold = next((row for row, point in enumerate(points) if best and point.draft == best), None)
    return FigureTable(HEADINGS, rows, bold=bold)


def _acceptance(point: CostPoint) -> str:
    if not point.draft:
        return "–"
    return "never" if point.break_even is None else f"{100 * point.break_even:.0f} %"


def _remarks(measurement: Measurement) -> Iterator[str]:
    profile = measurement.profile
    yield (
        "V(n) is the time of one forward over n tokens. A draft pays from an acceptance on: the probability "
        "of each token, given those before it."
    )
    if profile.resize:
        single = profile.curve[profile.nearest_depth(TYPICAL_DEPTH)][1]
        yield (
            "A forward of another size than the one before it takes "
            f"{profile.resize * single:.2f} ms longer: V(n) includes that, V(1) does not, and a draft not "
            "followed by another pays it twice."
        )
    if profile.snapshot_ms is not None and profile.restore_ms is not None:
        yield (
            f"Saving a sequence of {max(profile.curve):,} tokens takes {profile.snapshot_ms:.2f} ms, "
            f"bringing it back {profile.restore_ms:.2f} ms."
        )
    if measurement.cut is not None:
        yield (
            f"Filling the KV cache with {measurement.cut:,} tokens would have taken long: it was measured "
            f"with up to {max(profile.curve):,}. --depth {measurement.cut} goes there, however long it takes."
        )
    if measurement.slowdown >= BUSY:
        yield (
            f"The machine was busy: a plain forward usually took {measurement.slowdown:.1f} times the "
            "shortest one. Measure again when it is quiet."
        )


# --- JSON and curves -----------------------------------------------------------------------------------


def measurement_dict(measurement: Measurement) -> dict[str, Any]:
    """The measurement as a JSON object. Its `curves` holds the one at TYPICAL_DEPTH, in the form that
    `find_curve` reads, so that the file can be replayed on.
    """
    profile = measurement.profile
    curve = to_curve(profile)
    return {
        "model": profile.name,
        "key": asdict(profile.key),
        "measured_at": profile.measured_at.isoformat(),
        "passes": measurement.passes,
        "slowdown": round(measurement.slowdown, 3),
        "cut": measurement.cut,
        "resize": profile.resize,
        "snapshot_ms": profile.snapshot_ms,
        "restore_ms": profile.restore_ms,
        "depths": [
            {
                "depth": depth,
                "points": [
                    {**asdict(point), "best_ms": measurement.best[depth][point.rows]}
                    for point in cost_points(sizes)
                ],
            }
            for depth, sizes in profile.curve.items()
        ],
        "curves": {
            curve.name: {
                "about": curve.about,
                "v1_ms": curve.v1_ms,
                "resize": curve.resize,
                "points": {str(rows): ratio for rows, ratio in curve.points.items()},
            }
        },
    }


def to_curve(profile: Profile, depth: int = TYPICAL_DEPTH) -> Curve:
    """V(n)/V(1) of a profile, at the measured depth nearest to `depth` tokens."""
    nearest = profile.nearest_depth(depth)
    sizes = profile.curve[nearest]
    return Curve(
        name=profile.name or "profile",
        points={rows: ms / sizes[1] for rows, ms in sorted(sizes.items())},
        v1_ms=sizes[1],
        resize=profile.resize or 0.0,
        about=f"measured {profile.measured_at:%Y-%m-%d}: {setting_text(profile.key)}, "
        f"{nearest:,} tokens in the KV cache",
    )


def setting_text(key: ProfileKey) -> str:
    """What was measured with, in a line."""
    threads = f"{key.threads} thread{'' if key.threads == '1' else 's'}" if key.threads else ""
    device = f"{key.device} ({key.processor})" if key.processor and key.device == "cpu" else key.device
    parts = (key.backend, device, threads, f"KV {key.kv_type}" if key.kv_type else "")
    return ", ".join(part for part in parts if part)
