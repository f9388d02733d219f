"""Cost curves V(n)/V(1): those that ship, and how one is read from a file."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from math import isfinite
from pathlib import Path

from foredraft.bench.attempt_cost import AttemptCost, parse_cost, usual_cost
from foredraft.errors import ConfigError

SHIPPED = "cost_curves.json"


@dataclass(frozen=True, slots=True)
class Curve:
    """V(n)/V(1) at the `points` (rows → ratio, with 1 → 1.0), linear in between and beyond. Where the last
    one was measured below the one before it, in a busy moment, rows beyond it cost what its rows do on
    average.

    `v1_ms` is V(1) in milliseconds; `about` says where the numbers come from. `resize` is what a forward
    takes longer, in V(1), whose number of rows is not that of the forward before it (docs/planner.md): V(1)
    is without it, V(n) with it.
    """

    name: str
    points: Mapping[int, float]
    v1_ms: float = 10.0
    about: str = ""
    resize: float = 0.0
    attempt_ms: AttemptCost | None = None
    """None: the usual."""

    @property
    def attempts(self) -> AttemptCost:
        """What attempts to draft cost beside these forwards."""
        return usual_cost(self.v1_ms) if self.attempt_ms is None else self.attempt_ms

    def ratio(self, rows: int) -> float:
        """V(rows)/V(1)."""
        known = sorted(self.points.items())
        i = min(max(bisect_right(known, (rows, float("inf"))), 1), len(known) - 1)
        (low, below), (high, above) = known[i - 1], known[i]
        if rows > high and above < below:
            return above + (rows - high) * max(above - 1.0, 0.0) / (high - 1)
        return below + (rows - low) / (high - low) * (above - below)

    def after(self, before: int, rows: int) -> float:
        """What a forward of `rows` takes that follows one of `before` rows, in V(1)."""
        included = self.resize if rows > 1 else 0.0
        return self.ratio(rows) - included + (self.resize if before != rows else 0.0)


def shipped_curves() -> dict[str, Curve]:
    """The curves that come with Foredraft, by name."""
    text = files("foredraft.bench").joinpath(SHIPPED).read_text(encoding="utf-8")
    return _parse(json.loads(text), SHIPPED)


def find_curve(name: str) -> Curve:
    """A shipped curve, or the only one in a JSON file. Raises ConfigError."""
    found = find_curves(name)
    if len(found) != 1:
        raise ConfigError(
            f"{name} holds {len(found)} curves.", hint="Write the one you mean to a file of its own."
        )
    return found[0]


def find_curves(name: str) -> list[Curve]:
    """A shipped curve, or those in a JSON file. Raises ConfigError."""
    shipped = shipped_curves()
    if name in shipped:
        return [shipped[name]]
    path = Path(name)
    if not path.is_file():
        raise ConfigError(
            f"There is no cost curve {name!r}.",
            hint=f'Those that ship: {", ".join(shipped)}. Or name a JSON file: {{"1": 1, "2": 1.5, …}}.',
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"The cost curve {path} cannot be read: {error}.") from None
    if not isinstance(data, dict):
        raise ConfigError(f"The cost curve {path} is not a JSON object.")
    found = _parse(data if "curves" in data else {"curves": {path.stem: data}}, str(path))
    if not found:
        raise ConfigError(f"{path} holds no curve.")
    return list(found.values())


def _parse(data: Mapping[str, object], origin: str) -> dict[str, Curve]:
    curves = data.get("curves")
    if not isinstance(curves, dict):
        raise ConfigError(f"{origin} holds no 'curves'.")
    return {name: _curve(name, value, origin) for name, value in curves.items()}


def _curve(name: str, value: object, origin: str) -> Curve:
    if not isinstance(value, dict):
        raise ConfigError(f"{origin}: curve {name!r} is not a JSON object.")
    nested = value.get("points")
    try:
        points = {int(rows): float(ratio) for rows, ratio in (nested or value).items()}
        v1_ms = float(value.get("v1_ms", 10.0)) if nested else 10.0
        resize = float(value.get("resize", 0.0)) if nested else 0.0
    except (TypeError, ValueError, AttributeError):
        raise ConfigError(f"{origin}: curve {name!r} must map numbers of rows to V(n)/V(1).") from None
    if not all(map(isfinite, (*points.values(), v1_ms, resize))):
        raise ConfigError(f"{origin}: curve {name!r} holds a number that is not finite.")
    if len(points) < 2 or min(points) != 1 or points[1] <= 0 or min(points.values()) <= 0 or v1_ms <= 0:
        raise ConfigError(
            f"{origin}: curve {name!r} needs 1 row, at least one more size, and positive times."
        )
    if not 0.0 <= resize < min(ratio for rows, ratio in points.items() if rows > 1) / points[1]:
        raise ConfigError(f"{origin}: curve {name!r}: 'resize' is a part of a forward, and not negative.")
    scaled = {rows: ratio / points[1] for rows, ratio in points.items()}
    about = str(value.get("about", "")) if nested else ""
    asking = value.get("asking_ms") if nested else None
    attempt_ms = None if asking is None else parse_cost(asking, f"{origin}: curve {name!r}")
    return Curve(name, scaled, v1_ms, about, resize, attempt_ms)
