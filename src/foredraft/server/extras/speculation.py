"""GET /v1/speculation: drafters, gains, recent decisions and the cost of forwards.

It covers all users' requests and is open to every key, so it contains only numbers and names of drafters: no
text, no token, and nothing that identifies a request or its user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from foredraft.engine.engine import Engine
from foredraft.engine.stats import PlainRound, Speedup
from foredraft.errors import CapacityError
from foredraft.planner import AutoPlanner
from foredraft.planner.records import RequestRecord, RoundRecord
from foredraft.server.pool import ModelPool


def speculation_router(pool: ModelPool) -> APIRouter:
    """The route for the models of `pool`."""
    router = APIRouter()

    @router.get("/v1/speculation")
    async def speculation() -> dict[str, Any]:
        states: dict[str, Any] = {}
        for name, served in pool.loaded.items():
            try:
                state = await served.worker.call(describe)
            except CapacityError:  # unloaded meanwhile, or its engine has stopped
                continue
            states[name] = {**state, "tokens_generated": pool.metrics.tokens(name)}
        return states

    return router


def describe(engine: Engine) -> dict[str, Any]:
    """The state of one engine's speculation."""
    capabilities, planner = engine.model.capabilities, engine.planner
    decisions = engine.decisions.latest()
    state: dict[str, Any] = {
        "configured": engine.setup.configured,
        "head": engine.setup.head and Path(engine.setup.head).name,
        "requests": {"running": engine.running_count, "waiting": engine.waiting_count},
        "kv_cache_tokens": engine.kv_tokens,
        "exact": capabilities.batch_invariant,
        "exact_reason": capabilities.invariance_note,
        "reason": _reason(engine, decisions),
        "notes": list(engine.notes),
        "drafters": {name: asdict(stats) for name, stats in engine.decisions.totals().items()},
        "decisions": [_decision(decision) for decision in decisions],
        "recent": recent(decisions, engine.plain_round),
    }
    if isinstance(planner, AutoPlanner):
        state["rounds"] = planner.cost.rounds
        state["cost_curve_ms"] = {
            str(depth): {str(rows): round(ms, 4) for rows, ms in sizes.items()}
            for depth, sizes in planner.cost.state().get("milliseconds", {}).items()
        }
    return state


def _reason(engine: Engine, decisions: Sequence[RoundRecord]) -> str | None:
    """Why nothing is being drafted at the moment; None if something is."""
    setup = engine.setup
    able = setup.reason is None and bool(setup.drafters)
    return (
        "no round has decoded yet" if able and not decisions else setup.why_nothing(engine.decisions.reason())
    )


def recent(
    decisions: Sequence[RoundRecord], plain_round: Callable[[int], PlainRound | None]
) -> dict[str, Any] | None:
    """Totals over recent rounds; None without any. `plain_round`: the time of a plain round with that many
    requests.

    `estimated_speedup` is defined as in `SpeculationStats`, over all users' requests and the rounds without
    prefill.
    """
    if not decisions:
        return None
    speedup = Speedup()
    for decision in decisions:
        requests = len(decision.choices)
        usual = None if decision.prefill_rows else plain_round(requests)
        if usual is None:
            continue
        ms = sum(_ms(decision).values())
        if any(choice.length for choice in decision.choices):
            speedup.drafted(_tokens(decision), ms, usual, requests)
        else:
            speedup.plain(ms, ms - decision.forward_ms - decision.sample_ms, usual, requests)
    return {
        "rounds": len(decisions),
        "tokens": sum(map(_tokens, decisions)),
        "ms": round(sum(sum(_ms(decision).values()) for decision in decisions), 3),
        "depth": decisions[-1].depth,
        "estimated_speedup": speedup.value,
    }


def _tokens(decision: RoundRecord) -> int:
    return sum(choice.committed for choice in decision.choices)


def _ms(decision: RoundRecord) -> dict[str, float]:
    """A round's time by the categories of `SpeculationStats.ms`."""
    return {
        "draft": sum(decision.draft_ms.values()),
        "verify": decision.forward_ms,
        "sample": decision.sample_ms,
        "other": decision.plan_ms + decision.late_ms,
    }


def _decision(decision: RoundRecord) -> dict[str, Any]:
    return {
        "round": decision.number,
        "rows": decision.rows,
        "ms": {part: round(spent, 3) for part, spent in _ms(decision).items()},
        "requests": [_choice(choice) for choice in decision.choices],
    }


def _choice(choice: RequestRecord) -> dict[str, Any]:
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
