"""GET /v1/speculation: what is drafted with, what it brought, what was decided lately, the cost of forwards.

It is about everybody's requests, and anybody with a key may ask: so it holds numbers and names of drafters,
no text, no token, and not which request or whose it was.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from foretoken.engine.engine import Engine
from foretoken.planner.adaptive import AdaptivePlanner
from foretoken.planner.decision import Choice, Decision
from foretoken.server.pool import ModelPool


def speculation_router(pool: ModelPool) -> APIRouter:
    """The route, for the models of `pool`."""
    router = APIRouter()

    @router.get("/v1/speculation")
    async def speculation() -> dict[str, Any]:
        return {name: await served.worker.call(describe) for name, served in pool.loaded.items()}

    return router


def describe(engine: Engine) -> dict[str, Any]:
    """The state of one engine's speculation."""
    capabilities, planner = engine.model.capabilities, engine.planner
    state: dict[str, Any] = {
        "exact": capabilities.batch_invariant,
        "exact_reason": capabilities.invariance_note,
        "reason": planner.reason(),
        "notes": list(engine.notes),
        "drafters": {name: asdict(stats) for name, stats in engine.decisions.totals().items()},
        "decisions": [_decision(decision) for decision in engine.decisions.latest()],
    }
    if isinstance(planner, AdaptivePlanner):
        state["rounds"] = planner.rounds
        state["cost_curve_ms"] = {
            str(depth): {str(rows): round(ms, 4) for rows, ms in sizes.items()}
            for depth, sizes in planner.curve().items()
        }
        state["calibration_error"] = planner.reliability.error
    return state


def _decision(decision: Decision) -> dict[str, Any]:
    ms = {
        "draft": sum(decision.draft_ms.values()),
        "verify": decision.forward_ms,
        "sample": decision.sample_ms,
        "other": decision.plan_ms,
    }
    return {
        "round": decision.number,
        "rows": decision.rows,
        "ms": {part: round(spent, 3) for part, spent in ms.items()},
        "requests": [_choice(choice) for choice in decision.choices],
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "asked": list(choice.asked),
        "candidates": [
            {"drafter": draft.source, "length": draft.length, "width": draft.width}
            for draft in choice.candidates
        ],
        "drafter": choice.source,
        "drafted": choice.length,
        "width": choice.width,
        "accepted": choice.accepted,
        "committed": choice.committed,
        "expected_gain": None if choice.gain is None else round(choice.gain, 3),
        "reason": choice.reason,
    }
