"""Who comes in, in which order, and until when: priorities, the queue's limit, deadlines."""

from __future__ import annotations

from collections.abc import Iterable

from foredraft.engine.request import Request
from foredraft.errors import QueueFullError, RequestError
from foredraft.types import FinishReason


def turn(request: Request) -> tuple[int, int]:
    """What requests are sorted by: higher priority first, then the one that was added first."""
    return -request.priority, request.id


def check_terms(priority: object, deadline_s: object, max_draft: object) -> None:
    """Raises RequestError for a priority, a deadline or a cap on drafts that is none."""
    if max_draft is not None and (
        not isinstance(max_draft, int) or isinstance(max_draft, bool) or max_draft < 0
    ):
        raise RequestError(
            f"max_draft={max_draft!r} is not valid.", hint="A cap is a whole number of tokens; 0 is none."
        )
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise RequestError(
            f"priority={priority!r} is not valid.", hint="A priority is a whole number; higher goes first."
        )
    if deadline_s is None:
        return
    if not isinstance(deadline_s, int | float) or isinstance(deadline_s, bool) or not deadline_s > 0:
        raise RequestError(
            f"deadline_s={deadline_s!r} is not valid.", hint="A deadline is a number of seconds above 0."
        )


def check_queue(waiting: int, places: int, most: int | None) -> None:
    """Raises QueueFullError when, `places` being free, one request more would leave over `most` waiting."""
    if most is not None and waiting >= most + places:
        raise QueueFullError(
            f"{waiting} requests are waiting already; at most {most} may.",
            hint="Try again when some of them are answered.",
        )


def expire(requests: Iterable[Request], now: float) -> list[Request]:
    """Mark the requests whose deadline has passed at `now` (seconds) as aborted; returns them."""
    late = [request for request in requests if request.deadline is not None and now >= request.deadline]
    for request in late:
        where = f"after {request.generated} tokens" if request.generated else "before its first token"
        doing = "running" if request.seq >= 0 else "waiting"
        request.finish = FinishReason.ABORT
        request.error = f"The request's deadline passed while it was {doing}, {where}."
    return late
