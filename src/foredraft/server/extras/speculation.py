"""GET /v1/speculation: drafters, gains, recent decisions and the cost of forwards.

It covers all users' requests and is open to every key, so it contains only numbers and names of drafters: no
text, no token, no path, and nothing that identifies a request or its user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from foredraft.engine.engine import Engine
from foredraft.engine.speculation import REASON_CODES
from foredraft.engine.stats import PlainRound, Speedup
from foredraft.errors import CapacityError
from foredraft.planner import AutoPlanner
from foredraft.planner.records import RequestRecord, RoundRecord
from foredraft.server.extras.speculation_schemas import Speculation
from foredraft.server.pool import ModelPool
from foredraft.server.told import without_paths
from foredraft.types import Reason, Undrafted


def speculation_router(pool: ModelPool) -> APIRouter:
    """The route for the models of `pool`."""
    router = APIRouter()

    @router.get("/v1/speculation")
    async def speculation() -> Speculation:
        return await states_of(pool)

    return router


async def states_of(pool: ModelPool) -> Speculation:
    """The states of all loaded models. It waits for a running forward of each."""
    states: dict[str, Any] = {}
    for name, served in pool.engines.items():
        try:
            state = await served.worker.call(describe)
        except CapacityError:  # unloaded meanwhile, or its engine has stopped
            continue
        states[name] = {**without_paths(state), "tokens_generated": pool.metrics.tokens(name)}
    return Speculation.model_validate(states)


def describe(engine: Engine) -> dict[str, Any]:
    """The state of one engine's speculation."""
    capabilities, planner = engine.model.capabilities, engine.planner
    decisions = drafting(engine.decisions.latest())
    state: dict[str, Any] = {
        "configured": engine.setup.configured,
        "head": engine.setup.head and Path(engine.setup.head).name,
        "requests": {"running": engine.running_count, "waiting": engine.waiting_count},
        "kv_cache_tokens": engine.kv_tokens,
        "exact": capabilities.batch_invariant,
        "exact_reason": capabilities.invariance_note,
        "reason": _reason(engine, decisions),
        "summary": summary(engine, decisions),
        "notes": list(engine.notes),
        "drafters": {name: asdict(stats) for name, stats in engine.decisions.totals().items()},
        "decisions": [_decision(decision) for decision in decisions],
        "recent": recent(decisions, engine.plain_round),
        "rounds": None,
        "cost_curve_ms": None,
        "plain_ms": None,
        "draft_token_ms": {},
        "idle_threads": engine.model.idle_threads,
        "adapters": {name: stats.as_dict() for name, stats in engine.by_adapter.items()},
    }
    if isinstance(planner, AutoPlanner):
        state["plain_ms"] = round(planner.cost.baseline_ms, 4) or None
        state["draft_token_ms"] = {name: round(ms, 4) for name, ms in planner.token_ms().items()}
        state["rounds"] = planner.cost.rounds
        state["cost_curve_ms"] = {
            str(depth): {str(rows): round(ms, 4) for rows, ms in sizes.items()}
            for depth, sizes in planner.cost.state().get("milliseconds", {}).items()
        }
    return state


def drafting(decisions: Sequence[RoundRecord]) -> list[RoundRecord]:
    """The rounds in which something was decided: not all of their requests have drafting switched off."""
    return [decision for decision in decisions if _decided(decision)]


def _decided(decision: RoundRecord) -> list[RequestRecord]:
    """The requests of a round that may draft."""
    return [choice for choice in decision.choices if choice.reason is not Reason.SWITCHED_OFF]


def _reason(engine: Engine, decisions: Sequence[RoundRecord]) -> str | None:
    """Why nothing is being drafted at the moment; None if something is."""
    setup = engine.setup
    able = setup.reason is None and bool(setup.drafters)
    return Undrafted.NOT_DECODED if able and not decisions else setup.why_nothing(engine.decisions.reason())


def summary(engine: Engine, decisions: Sequence[RoundRecord]) -> dict[str, Any]:
    """What speculation does at the moment, for the requests that run: the fields of `SpeculationSummary`."""
    said: dict[str, Any] = dict.fromkeys(
        ("code", "drafter", "tokens_per_forward", "speedup", "reason", "reason_code")
    )
    setup, running = engine.setup, engine.drafting_ids
    reason = None if setup.reason is None and setup.drafters else setup.why_nothing(None)
    if reason is not None:
        said["code"] = "off" if reason == Undrafted.TURNED_OFF else "no_drafters"
    elif not engine.running_ids:
        said["code"] = "idle"
    elif not running:
        said["code"], reason = "plain", Reason.SWITCHED_OFF
    else:
        rounds = [each for each in decisions if any(choice.request in running for choice in each.choices)]
        choices = [choice for each in rounds for choice in _decided(each)]
        drafted = [choice for choice in choices if choice.source is not None]
        found = recent(rounds, engine.plain_round)
        if choices and found is not None:
            said["tokens_per_forward"] = round(found["tokens"] / len(choices), 2)
            said["speedup"] = found["estimated_speedup"]
        if drafted:
            said["code"], said["drafter"] = "drafting", _leading(drafted)
        else:
            reasons = Counter(choice.reason for choice in choices if choice.reason is not None)
            reason = reasons.most_common(1)[0][0] if reasons else Undrafted.NOT_DECODED
            measuring = reason in (Reason.MEASURING, Undrafted.NOT_DECODED)
            said["code"] = "measuring" if measuring else "plain"
    if reason is not None:
        said["reason"], said["reason_code"] = str(reason), REASON_CODES.get(reason)
    return said


def _leading(drafted: Sequence[RequestRecord]) -> str:
    """The drafter of which most tokens were accepted; where none were, of which most were verified."""
    accepted, verified = Counter[str](), Counter[str]()
    for choice in drafted:
        accepted[choice.source or ""] += choice.accepted
        verified[choice.source or ""] += choice.length
    return max(verified, key=lambda name: (accepted[name], verified[name]))


def recent(
    decisions: Sequence[RoundRecord], plain_round: Callable[[int], PlainRound | None]
) -> dict[str, Any] | None:
    """Totals over recent rounds; None without any. `plain_round`: the time of a plain round with that many
    requests.

    `tokens` are of the requests that may draft. `estimated_speedup` is defined as in `SpeculationStats`, over
    all users' requests and the rounds without prefill.
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
        "tokens": sum(choice.committed for each in decisions for choice in _decided(each)),
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
        "requests": [_choice(choice) for choice in _decided(decision)],
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
        "reason_code": REASON_CODES.get(choice.reason or ""),
    }
