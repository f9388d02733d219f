"""Statistics of a finished request beside its `usage`: timings and speculation (docs/server.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from foredraft.engine.speculation import REASON_CODES
from foredraft.server.told import without_paths
from foredraft.types import FinishEvent, SpeculationStats, Timings

STOPPED_BY_ADMIN = "The administrator stopped this answer."
STOPPED_BY_OWNER = "The owner of its key stopped this answer."
NOTICE_CODES = {STOPPED_BY_ADMIN: "stopped_by_admin", STOPPED_BY_OWNER: "stopped_by_owner"}
"""Codes of notices with a fixed text, for translations."""


def timings(values: Timings) -> dict[str, Any]:
    """llama.cpp's `timings`."""
    return {
        **{name: _short(value) for name, value in asdict(values).items()},
        "prompt_per_second": _short(values.prompt_per_second),
        "predicted_per_second": _short(values.predicted_per_second),
    }


def speculation(stats: SpeculationStats) -> dict[str, Any]:
    """The `speculation` object of an answer; `reason_code` is that of a fixed `reason`, for translations."""
    return {**without_paths(asdict(stats)), "reason_code": REASON_CODES.get(stats.reason or "")}


def extras(ends: Sequence[FinishEvent]) -> dict[str, Any]:
    """`timings` and `speculation` of the first answer, as they are added to a response; and why an answer
    ended early, if one did, with the code of that `notice`.
    """
    notices = [end.notice for end in ends if end.notice]
    return {
        "timings": timings(ends[0].timings),
        "speculation": speculation(ends[0].speculation),
        **({"notice": notices[0], "notice_code": NOTICE_CODES.get(notices[0])} if notices else {}),
    }


def _short(value: float) -> float:
    return round(value, 3) if isinstance(value, float) else value
