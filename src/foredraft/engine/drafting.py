"""The engine's drafters: asking all of them, telling all of them, and living through one that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from time import perf_counter
from typing import NamedTuple, Protocol, TypeVarTuple, Unpack

from foredraft.engine.request import Request
from foredraft.errors import ConfigError, ForedraftError
from foredraft.protocols import Drafter, RequestView
from foredraft.types import Draft, DraftLimit, Outcome

logger = logging.getLogger(__name__)
Arguments = TypeVarTuple("Arguments")


class Toll(Protocol):
    """What asking takes where the clock is a virtual one: it hears of every round and question, and moves the
    clock.
    """

    def began(self) -> None:
        """A round begins in which drafters may be asked."""
        ...

    def asked(self, drafter: str, requests: int) -> None:
        """A drafter was asked for so many requests."""
        ...

    def found(self, requests: int) -> None:
        """For so many requests there is something to choose from."""
        ...


class _Untold(NamedTuple):
    """What a drafter has not heard of a request: the text from `kept` on. `outcome` where it is one round."""

    view: RequestView
    kept: int
    outcome: Outcome | None


class Drafters:
    """Several drafters as one. A drafter that raises is dropped with a note; the text is not at risk,
    because verification never trusts a draft.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        vocab_size: int,
        *,
        trees: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._drafters = {drafter.name: drafter for drafter in drafters}
        if len(self._drafters) < len(drafters):
            raise ConfigError(f"Two drafters have the same name: {[drafter.name for drafter in drafters]}.")
        self._vocab_size = vocab_size
        self._trees = trees
        self._clock = clock
        self._untold: dict[str, dict[int, _Untold]] = {name: {} for name in self._drafters}
        self._waiting: set[int] = set()  # requests of which all drafters have several rounds to hear of
        self._serving: dict[int, tuple[str, ...]] = {}
        """By request, the names of those that serve it."""
        self._listening_ms: dict[str, float] = {}
        self.notes: list[str] = []
        self.toll: Toll | None = None

    def __bool__(self) -> bool:
        return bool(self._drafters)

    @property
    def names(self) -> list[str]:
        return list(self._drafters)

    @property
    def successors(self) -> int:
        """The most likely next tokens of a row that any drafter wants to hear of."""
        return max((drafter.successors for drafter in self._all()), default=0)

    def start(self, view: RequestView) -> None:
        serving: list[str] = []
        for drafter in self._all():
            self._guard(drafter, self._start, drafter, view, serving)
        self._serving[view.id] = tuple(serving)

    @staticmethod
    def _start(drafter: Drafter, view: RequestView, serving: list[str]) -> None:
        drafter.start(view)
        if drafter.serves(view):
            serving.append(drafter.name)

    def serving(self, requests: Sequence[RequestView]) -> Sequence[str]:
        """The names of those that may draft for any of these requests."""
        names = [self._serving[request.id] for request in requests]
        if names.count(names[0]) == len(names):
            return names[0]
        found = set().union(*names)
        return [name for name in self._drafters if name in found]

    def observe(self, view: RequestView, outcome: Outcome, asked: Collection[str] | None = None) -> None:
        """A round is over, in which these drafters were `asked`; by default all.

        They hear of it when they are asked again: what they look at then is in the processor's caches once,
        not twice, and of many rounds at once it costs a fraction. Only what one learns from besides the text
        it is told at once (`Drafter.successors`).
        """
        if asked is not None and not asked and view.id in self._waiting:
            return
        several = True
        for name, drafter in list(self._drafters.items()):
            untold = self._untold[name]
            first = untold.get(view.id)
            if first is None:
                untold[view.id] = _Untold(view, outcome.kept, outcome)
            elif first.outcome is not None or outcome.kept < first.kept:
                untold[view.id] = _Untold(view, min(first.kept, outcome.kept), None)
            if drafter.successors and (asked is None or name in asked):
                began = self._clock()
                self._tell(drafter, view.id)
                self._listening_ms[name] = self._listening_ms.get(name, 0.0) + 1e3 * (self._clock() - began)
                several = False
            several = several and first is not None
        if several:
            self._waiting.add(view.id)

    def _tell(self, drafter: Drafter, request: int) -> None:
        """Tell it what it has not heard of a request: of several rounds as of one change."""
        untold = self._untold[drafter.name].pop(request, None)
        if untold is None:
            return
        self._waiting.discard(request)
        view, kept, outcome = untold
        if outcome is None:
            outcome = Outcome(kept, tuple(view.tokens[kept:]))
        self._guard(drafter, drafter.observe, view, outcome)

    def with_listening(self, spent: Mapping[str, float]) -> dict[str, float]:
        """The milliseconds of `draft`, and those of what these drafters were told since they were last asked:
        what asking them costs.
        """
        return {name: ms + self._listening_ms.pop(name, 0.0) for name, ms in spent.items()}

    def stop(self, view: RequestView) -> None:
        self._waiting.discard(view.id)
        self._serving.pop(view.id, None)
        for drafter in self._all():
            self._tell(drafter, view.id)
            self._guard(drafter, drafter.stop, view)

    def close(self) -> None:
        for drafter in self._all():
            self._guard(drafter, drafter.close)

    def successors_wanted(
        self, limits: Mapping[str, Sequence[DraftLimit | None]], requests: int
    ) -> list[int]:
        """For each of so many requests the most that a drafter wants which is asked with these limits."""
        wanted = [0] * requests
        for drafter in self._all():
            if drafter.successors:
                for i, limit in enumerate(limits.get(drafter.name, ())):
                    if limit and limit.max_tokens > 0:
                        wanted[i] = max(wanted[i], drafter.successors)
        return wanted

    def draft(
        self, requests: Sequence[Request], limits: Mapping[str, Sequence[DraftLimit | None]]
    ) -> tuple[list[list[Draft]], dict[str, float]]:
        """The candidates of each request, and the milliseconds each drafter took."""
        candidates: list[list[Draft]] = [[] for _ in requests]
        spent: dict[str, float] = {}
        for drafter in self._all():
            limited = limits.get(drafter.name, ())
            asked = [(i, limit) for i, limit in enumerate(limited) if limit and limit.max_tokens > 0]
            if not asked:
                continue
            began = self._clock()
            for i, _ in asked:
                self._tell(drafter, requests[i].id)
            self._guard(drafter, self._ask, drafter, asked, requests, candidates)
            if self.toll is not None:
                self.toll.asked(drafter.name, len(asked))
            spent[drafter.name] = ms = 1e3 * (self._clock() - began)
            for i, _ in asked:
                requests[i].stats.drafting(drafter.name, ms / len(asked))
        if self.toll is not None and any(candidates):
            self.toll.found(sum(map(bool, candidates)))
        return candidates, spent

    def _ask(
        self,
        drafter: Drafter,
        asked: Sequence[tuple[int, DraftLimit]],
        requests: Sequence[Request],
        candidates: list[list[Draft]],
    ) -> None:
        drafts = drafter.draft([(requests[i].view, limit) for i, limit in asked])
        for (i, limit), draft in zip(asked, drafts, strict=True):
            if draft is None:
                continue
            self._check(draft, limit)
            useful = requests[i].sampler.prune(draft)
            if useful is not None:
                candidates[i].append(useful)

    def _check(self, draft: Draft, limit: DraftLimit) -> None:
        if not 0 < len(draft) <= limit.max_tokens:
            raise ValueError(f"drafted {len(draft)} tokens of at most {limit.max_tokens}")
        if min(draft.tokens) < 0 or max(draft.tokens) >= self._vocab_size:
            raise ValueError("drafted a token outside the vocabulary")
        if draft.parents is None:
            return
        if not self._trees:
            raise ValueError("drafted a tree, and this model verifies chains only")
        if len(draft.parents) != len(draft) or not all(
            -1 <= parent < i for i, parent in enumerate(draft.parents)
        ):
            raise ValueError("drafted a tree whose parents do not come before their children")

    def _all(self) -> list[Drafter]:
        return list(self._drafters.values())

    def _guard(self, drafter: Drafter, call: Callable[[Unpack[Arguments]], None], *args: *Arguments) -> None:
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001 - plugins may raise anything; plain decoding goes on
            reason = error.message if isinstance(error, ForedraftError) else repr(error)
            logger.warning("Drafter %s failed and is no longer used: %s", drafter.name, reason)
            self.notes.append(f"drafter {drafter.name} failed and is no longer used: {reason}")
            self._drafters.pop(drafter.name, None)
            for request, names in self._serving.items():
                self._serving[request] = tuple(name for name in names if name != drafter.name)
            self._close_failed(drafter)

    def _close_failed(self, drafter: Drafter) -> None:
        try:
            drafter.close()
        except Exception:
            logger.exception("Drafter %s could not even be closed", drafter.name)
