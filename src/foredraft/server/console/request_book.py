"""The requests for answers that run, and the last ones that ended, in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from time import perf_counter
from typing import Literal

from foredraft.engine.speculation import REASON_CODES
from foredraft.server.auth import Caller
from foredraft.server.console.request_schemas import DraftedBy, RequestRow, Requests, Texts
from foredraft.server.metrics import Watch
from foredraft.server.report import NOTICE_CODES, STOPPED_BY_ADMIN, STOPPED_BY_OWNER
from foredraft.server.request_log import Entry
from foredraft.server.told import without_paths
from foredraft.server.transcript import Transcript
from foredraft.types import FinishEvent

APIS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
"""The APIs that answer, by their paths."""

MOST_ENDED, MOST_REFUSED = 500, 100
"""Requests that are kept after their end. Refused ones are kept apart: a flood of them must not push out
answers.
"""

MOST_RECORDED = 8_000_000
"""Characters of texts that are kept, of all requests that have ended."""

PREVIEW = 1000
"""Characters of each text in a list."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """`number`: how many had ended before it. `identity`: of its caller."""

    number: int
    identity: str | None
    row: RequestRow
    transcript: Transcript | None = None


class RequestBook:
    """Notes the requests of one server: those to an API that answers, and others that were refused and not
    merely read something. `clock` gives the seconds of `perf_counter`.

    Memory: about 1 kB for each of 600 rows, and the recorded texts.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._running: dict[int, Entry] = {}
        self._ended: deque[_Ended] = deque(maxlen=MOST_ENDED)
        self._refused: deque[_Ended] = deque(maxlen=MOST_REFUSED)
        self._recording = False
        self.begun = 0
        """Requests to an API that answers, since the server started."""
        self.ended = 0
        """Requests that were kept at their end, since the server started."""

    # --- what comes --------------------------------------------------------------------------------------

    def begin(self, entry: Entry) -> None:
        """A request has come."""
        if _api(entry) is not None:
            self.begun += 1
            self._running[id(entry)] = entry
            if self._recording:
                entry.transcript = Transcript()

    def end(self, entry: Entry, status: int) -> None:
        """A request is over."""
        known = self._running.pop(id(entry), None) is not None
        if entry.watches:
            self._ended.append(_Ended(self.ended, entry.identity, self._row(entry, status), entry.transcript))
            self._bound_texts()
        elif known or (status >= 400 and entry.method == "POST" and not entry.route.startswith("/console")):
            self._refused.append(_Ended(self.ended, entry.identity, self._row(entry, status)))
        else:
            return
        self.ended += 1

    @property
    def recording(self) -> bool:
        """Whether the texts of new requests are kept. Switched off, all are dropped."""
        return self._recording

    @recording.setter
    def recording(self, on: bool) -> None:
        self._recording = on
        if not on:
            for entry in self._running.values():
                entry.transcript = None
            self._ended = deque(map(_without_texts, self._ended), maxlen=MOST_ENDED)

    def _bound_texts(self) -> None:
        recorded = sum(each.transcript.size for each in self._ended if each.transcript is not None)
        for number, each in enumerate(self._ended):
            if recorded <= MOST_RECORDED:
                break
            if each.transcript is not None:
                recorded -= each.transcript.size
                self._ended[number] = _without_texts(each)

    # --- what is shown -----------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Requests that have not ended."""
        return len(self._running)

    def running_of(self, identity: str) -> int:
        """Those of one caller."""
        return sum(entry.identity == identity for entry in self._running.values())

    def requests(self, caller: Caller, since: int = 0) -> Requests:
        """What the caller may see, the newest first; of texts the beginnings. `since`: without those that had
        ended when `ended` was that.
        """
        running = [entry for entry in self._running.values() if _may_see(caller, entry.identity)]
        finished = [
            self._with_texts(each.row, each.transcript, caller, PREVIEW)
            for each in self._ended_since(since)
            if _may_see(caller, each.identity)
        ]
        return Requests(
            running=[
                self._with_texts(self._row(entry), entry.transcript, caller, PREVIEW)
                for entry in running[: -MOST_ENDED - 1 : -1]
            ],
            finished=sorted(finished, key=lambda row: row.at, reverse=True),
            recording=self._recording,
            ended=self.ended,
            whole=since == 0,
        )

    def news(self, caller: Caller, sent: Requests | None) -> Requests | None:
        """What has changed since `sent`: all of it if there is none, or if texts were dropped. None: nothing
        has.
        """
        if sent is None or sent.recording != self._recording:
            return self.requests(caller)
        if not (self._running or sent.running or sent.ended != self.ended):
            return None
        return self.requests(caller, sent.ended)

    def _ended_since(self, since: int) -> Iterator[_Ended]:
        for kept in (self._ended, self._refused):
            yield from takewhile(lambda each: each.number >= since, reversed(kept))

    def find(self, request_id: str, caller: Caller) -> RequestRow | None:
        """The newest request of this id that the caller may see, with its texts; None: there is none."""
        for each in self._newest_first():
            if each.row.id == request_id and _may_see(caller, each.identity):
                return self._with_texts(each.row, each.transcript, caller, None)
        return None

    def _newest_first(self) -> Iterator[_Ended]:
        """Those that run as if they had just ended."""
        for entry in reversed(self._running.values()):
            yield _Ended(self.ended, entry.identity, self._row(entry), entry.transcript)
        yield from reversed(self._ended)
        yield from reversed(self._refused)

    def stop(self, request_id: str, caller: Caller) -> bool:
        """End the caller's running requests of this id (for the admin, any caller's); texts so far stay.
        False: there are none.
        """
        found = [
            entry
            for entry in self._running.values()
            if entry.id == request_id and _may_see(caller, entry.identity)
        ]
        for entry in found:
            entry.stop(STOPPED_BY_ADMIN if caller.admin else STOPPED_BY_OWNER)
        return bool(found)

    @staticmethod
    def _with_texts(
        row: RequestRow, transcript: Transcript | None, caller: Caller, most: int | None
    ) -> RequestRow:
        if not caller.admin:
            told = {"error": row.error, "not_drafting": row.not_drafting}
            return row.model_copy(update=without_paths(told))
        if transcript is None:
            return row
        texts = Texts(prompt=transcript.prompt[:most], answer=transcript.answer[:most])
        return row.model_copy(update={"texts": texts})

    def _row(self, entry: Entry, status: int | None = None) -> RequestRow:
        """The row of a request; `status` None: it runs."""
        watches, ends = entry.watches, [watch.end for watch in entry.watches if watch.end is not None]
        drafters = _drafters(ends)
        drafted = sum(each.drafted for each in drafters.values())
        first, reason = next(iter(watches), None), _reason(ends)
        early = next((end.error or end.notice for end in ends if end.error or end.notice), None)
        return RequestRow(
            id=entry.id,
            at=entry.at,
            key=entry.caller or "",
            model=entry.model,
            api=_api(entry) or entry.path,
            state="done" if status is not None else _state(watches),
            status=status,
            duration_ms=1e3 * (self._clock() - entry.began),
            answers=len(watches),
            prompt_tokens=_prompt_tokens(watches) if watches else None,
            cached_tokens=_cached(watches) if ends else None,
            completion_tokens=sum(map(_tokens, watches)),
            first_token_ms=1e3 * (first.first - first.began) if first and first.first is not None else None,
            tokens_per_s=_rate(watches),
            acceptance=sum(each.accepted for each in drafters.values()) / drafted if drafted else None,
            speedup=_speedup(ends),
            drafters=drafters,
            finish=_finish(entry, status),
            not_drafting=reason,
            not_drafting_code=REASON_CODES.get(reason or ""),
            error=entry.error or early,
            code=entry.code or NOTICE_CODES.get(early or ""),
            texts=None,
        )


def _without_texts(ended: _Ended) -> _Ended:
    return replace(ended, transcript=None)


def _api(entry: Entry) -> str | None:
    return APIS.get(entry.route) if entry.method == "POST" else None


def _may_see(caller: Caller, identity: str | None) -> bool:
    return caller.admin or identity == caller.identity


def _state(watches: Sequence[Watch]) -> Literal["preparing", "waiting", "running"]:
    if not watches:
        return "preparing"
    return "running" if any(watch.ticket.placed for watch in watches) else "waiting"


def _finish(entry: Entry, status: int | None) -> str | None:
    """How the first answer ended; None: it has not, or there was none."""
    if status is None or not entry.watches:
        return "abort" if status == 499 else None
    end = entry.watches[0].end
    return str(end.reason) if end is not None else "abort"


def _distinct(watches: Sequence[Watch]) -> list[Watch]:
    """The first answer to each prompt."""
    return list({id(watch.prompt): watch for watch in reversed(watches)}.values())[::-1]


def _prompt_tokens(watches: Sequence[Watch]) -> int:
    return sum(len(watch.prompt) for watch in _distinct(watches))


def _cached(watches: Sequence[Watch]) -> int:
    return sum(watch.end.usage.cached_tokens for watch in _distinct(watches) if watch.end is not None)


def _tokens(watch: Watch) -> int:
    return watch.end.usage.completion_tokens if watch.end is not None else watch.count


def _rate(watches: Sequence[Watch]) -> float | None:
    """Tokens a second after the first one: of an answer that has ended as the engine measured it; of others,
    and of several together, as they came.
    """
    if len(watches) == 1 and (end := watches[0].end) is not None:
        timings = end.timings
        return 1e3 * (timings.predicted_n - 1) / timings.predicted_ms if timings.predicted_ms else None
    begun = [watch for watch in watches if watch.first is not None]
    firsts, lasts = [watch.first or 0.0 for watch in begun], [watch.last for watch in begun]
    after = sum(watch.count for watch in begun) - 1
    if after < 1 or max(lasts) <= min(firsts):
        return None
    return after / (max(lasts) - min(firsts))


def _drafters(ends: Sequence[FinishEvent]) -> dict[str, DraftedBy]:
    sums: dict[str, DraftedBy] = {}
    for end in ends:
        for name, stats in end.speculation.drafters.items():
            if stats.drafted:
                before = sums.get(name) or DraftedBy(drafted=0, accepted=0)
                sums[name] = DraftedBy(
                    drafted=before.drafted + stats.drafted, accepted=before.accepted + stats.accepted
                )
    return sums


def _speedup(ends: Sequence[FinishEvent]) -> float | None:
    """Time of plain rounds ÷ time taken, of the answers of which it is known."""
    known = [end.speculation for end in ends if end.speculation.estimated_speedup is not None]
    taken = [sum(stats.ms.values()) for stats in known]
    plain = [(stats.estimated_speedup or 0.0) * ms for stats, ms in zip(known, taken, strict=True)]
    return sum(plain) / sum(taken) if sum(taken) else None


def _reason(ends: Sequence[FinishEvent]) -> str | None:
    """Why nothing was drafted; None if something was."""
    reasons = [end.speculation.reason for end in ends]
    return next(iter(reasons), None) if None not in reasons else None
