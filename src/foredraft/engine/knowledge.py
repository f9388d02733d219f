"""What `auto` has learnt of a model, kept from run to run: costs, and how often drafts are right.

It is read when speculation is set up and written when it is set up anew or the engine is closed: never while
a request is running.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from foredraft.engine.warmup import REQUIRED
from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.planner.profile import Profile, ProfileStore, key_of
from foredraft.planner.ratios import far_above_prior
from foredraft.types import ModelInfo

TRUSTED = 500
"""Measured rounds from which a stored curve is used without measuring it again at the start. One that was
measured on purpose (`foredraft profile`) is used at once."""


class Knowledge:
    """The stored profile of one model. `remember` false keeps counts of past outputs neither way: costs are
    the machine's, but what was accepted comes from texts.
    """

    def __init__(self, store: ProfileStore, info: ModelInfo, *, remember: bool) -> None:
        self._store = store
        self._key = key_of(info)
        self._name = info.name
        self._remember = remember
        self._known: Profile | None = None

    def recall(self, planner: AdaptivePlanner) -> bool:
        """Tell a planner what is known. Returns whether that is enough to begin with.

        A curve that lets hardly any draft pay is learnt anew: it may be from a busy moment, and what looks
        too dear is not measured by decoding.
        """
        self._known = self._store.load(self._key)
        if self._known is None:
            return False
        learnt = self._known.learnt if self._remember else {}
        known = self._known
        curve = known.curve if known.thorough else _not_dear(known.curve)
        plain_ms = known.curve[min(known.curve)][1]
        planner.recall(
            curve,
            learnt,
            resize=known.resize if curve else None,
            asking={name: ms / plain_ms for name, ms in known.draft_ms.items()},
            choosing_ms=known.overhead_ms,
        )
        measured = REQUIRED.intersection(curve.get(min(known.curve), ()))
        return bool(measured) and (known.thorough or known.rounds >= TRUSTED)

    def keep(self, planner: AdaptivePlanner) -> None:
        """Store what a planner has learnt since. A failure is logged."""
        curve = planner.curve()
        if not curve or not planner.rounds:
            return
        known = self._known or Profile(key=self._key, name=self._name, curve=curve, measured_at=_now())
        self._known = replace(
            known,
            curve=curve,
            resize=round(planner.resize, 4),
            **_asking(planner),
            measured_at=_now(),
            rounds=known.rounds + planner.rounds,
            learnt=planner.knowledge() if self._remember else known.learnt,
        )
        self._store.save(self._known)


def _not_dear(curve: Mapping[int, Mapping[int, float]]) -> dict[int, Mapping[int, float]]:
    """The depths of a stored curve at which no size is far above the prior."""
    return {
        depth: sizes
        for depth, sizes in curve.items()
        if not far_above_prior({rows: ms / sizes[1] for rows, ms in sizes.items()})
    }


def _asking(planner: AdaptivePlanner) -> dict[str, Any]:
    """What asking takes, as fields of a profile; none before anybody was asked."""
    if not planner.asking_ms:
        return {}
    draft_ms = {name: round(ms, 4) for name, ms in planner.asking_ms.items()}
    return {"draft_ms": draft_ms, "overhead_ms": round(planner.choosing_ms, 4)}


def _now() -> datetime:
    return datetime.now(UTC)
