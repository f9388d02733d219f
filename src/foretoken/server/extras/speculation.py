"""GET /v1/speculation: what is drafted with, what it brought, and what forwards cost here."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from foretoken.engine.engine import Engine
from foretoken.planner.adaptive import AdaptivePlanner
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
    }
    if isinstance(planner, AdaptivePlanner):
        state["rounds"] = planner.rounds
        state["cost_curve_ms"] = {
            str(depth): {str(rows): round(ms, 4) for rows, ms in sizes.items()}
            for depth, sizes in planner.curve().items()
        }
        state["calibration_error"] = planner.reliability.error
    return state
