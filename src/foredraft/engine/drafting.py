"""The engine's drafters: calling all of them, keeping them up to date, and living through one that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from time import perf_counter
from typing import Protocol, TypeVar, TypeVarTuple, Unpack

from foredraft.engine.absorbing import Absorber, FeaturesOf
from foredraft.engine.stats import RequestStats
from foredraft.errors import BackendError, ConfigError, ForedraftError
from foredraft.protocols import Drafter, Proposer, RequestView
from foredraft.types import Draft, DraftLimit, Outcome

logger = logging.getLogger(__name__)
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

Limits = Mapping[str, Sequence[DraftLimit | None]]

USUAL_SIZE = 0.1
"""Parameters of a draft model as a share of its target's."""


class Pruner(Protocol):
    """What of a draft can be accepted at all (`RequestSampler.prune`)."""

    def prune(self, draft: Draft) -> Draft | None: ...


class Drafted(Protocol):
    """A request as it is drafted for."""

    @property
    def id(self) -> int: ...
    @property
    def view(self) -> RequestView: ...
    @property
    def sampler(self) -> Pruner: ...
    @property
    def stats(self) -> RequestStats: ...


class Drafters:
    """Several drafters as one. A drafter that raises is dropped with a note; the text is not at risk, because
    verification never trusts a draft. `parameters`: of the target, 0 if unknown. `placeholder`: the token
    of images (`Vision.placeholder`); drafts end before it. `clock` gives seconds. `late`: drafters read a
    request's text when they first draft for it, and never one of a request that they never draft for.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        vocab_size: int,
        *,
        trees: bool = False,
        parameters: int = 0,
        placeholder: int = -1,
        clock: Callable[[], float] = perf_counter,
        late: bool = False,
    ) -> None:
        self._drafters: dict[str, Drafter] = {}
        self._absorbers: dict[str, Absorber] = {}
        for drafter in drafters:
            self.put_back(drafter)
        if len(self._drafters) < len(drafters):
            raise ConfigError(f"Two drafters have the same name: {[drafter.name for drafter in drafters]}.")
        self._vocab_size = vocab_size
        self._trees = trees
        self._parameters = parameters
        self._placeholder = placeholder
        self._clock = clock
        self._late = late
        self._unread: dict[int, RequestView] = {}
        """Requests that no drafter was told of yet."""
        self._unobserved: dict[int, tuple[RequestView, Outcome]] = {}
        self.closed: list[str] = []
        """Those that were closed to make room, by name."""
        self._last: dict[int, tuple[int, int, FeaturesOf]] = {}
        """Of requests in the last forward the position of the last row that was kept, and its place there."""
        self.notes: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._drafters)

    @property
    def names(self) -> list[str]:
        return list(self._drafters)

    def proposers(self) -> list[Proposer]:
        """The drafters as a planner sees them."""
        return [
            Proposer(
                drafter.name,
                self._match_length_of(drafter),
                bool(getattr(drafter, "costly", False)),
                _reads(drafter),
                self._size_of(drafter),
                bool(getattr(drafter, "at_once", False)),
            )
            for drafter in self._all()
        ]

    def _size_of(self, drafter: Drafter) -> float:
        """Its parameters as a share of the target's; that of a usual draft model where it is unknown."""
        own = int(getattr(drafter, "parameters", 0))
        return min(1.0, own / self._parameters) if own and self._parameters else USUAL_SIZE

    def _match_length_of(self, drafter: Drafter) -> Callable[[RequestView], int]:
        own = getattr(drafter, "match_length", None)

        def match_length(request: RequestView) -> int:
            if own is None or drafter.name not in self._drafters or request.id in self._unread:
                return 0
            return self._guard(drafter, _whole, own, request) or 0

        return match_length

    def start(self, view: RequestView) -> None:
        if self._late:
            self._unread[view.id] = view
            return
        for drafter in self._all():
            self._guard(drafter, drafter.start, view)

    @property
    def absorbing(self) -> bool:
        """Whether a drafter takes the target's features."""
        return bool(self._absorbers)

    def forward_begins(self) -> None:
        """The features of the last forward are about to be gone."""
        self._last.clear()

    def absorb(
        self, view: RequestView, start: int, rows: Sequence[int], features: FeaturesOf, *, end: int = 0
    ) -> None:
        """`rows` of a forward, whose `features` can be had, were kept: those of the tokens from `start` on.
        `end`: of a prompt, the position up to which it is read.
        """
        self._last[view.id] = start + len(rows) - 1, rows[-1], features
        for name, absorber in list(self._absorbers.items()):
            for first, count in absorber.takes(view.id, start, len(rows), end):
                found = features(rows[first : first + count])
                self._guard(self._drafters[name], absorber.absorb, view, start + first, found)
                if name not in self._drafters:
                    break

    def _absorb_late(self, drafter: Drafter, view: RequestView) -> None:
        """Have a drafter that is about to draft absorb the last row, if it has not got it: that before the
        text's last token.
        """
        absorber = self._absorbers.get(drafter.name)
        if absorber is None or not absorber.asked(view.id):
            return
        position, row, features = self._last.get(view.id, (-1, 0, None))
        if features is None or position != len(view.tokens) - 2:
            return
        try:
            found = features([row])
        except BackendError:  # another engine on this model has computed a forward since
            return
        self._guard(drafter, absorber.absorb, view, position, found)

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """A round is over. Drafters observe it before they draft again; several rounds come as one change."""
        if not self._drafters or view.id in self._unread:
            return
        known = self._unobserved.get(view.id)
        if known is not None:
            before = known[1]
            if not before.tokens and before.kept <= outcome.kept:
                return
            # Its tokens are those of the text from `kept` on.
            outcome = Outcome(min(before.kept, outcome.kept), ())
        self._unobserved[view.id] = view, outcome

    def _catch_up(self, request: int) -> None:
        """Have all drafters observe what happened to a request."""
        if request in self._unread:
            unread = self._unread.pop(request)
            for drafter in self._all():
                self._guard(drafter, drafter.start, unread)
        if request not in self._unobserved:
            return
        view, outcome = self._unobserved.pop(request)
        if not outcome.tokens:
            outcome = Outcome(outcome.kept, tuple(view.tokens[outcome.kept :]))
        for drafter in self._all():
            self._guard(drafter, drafter.observe, view, outcome)

    def stop(self, view: RequestView) -> None:
        if self._unread.pop(view.id, None) is not None:
            return
        self._catch_up(view.id)
        self._last.pop(view.id, None)
        for absorber in self._absorbers.values():
            absorber.stop(view.id)
        for drafter in self._all():
            self._guard(drafter, drafter.stop, view)

    def close(self) -> None:
        for drafter in self._all():
            self._guard(drafter, drafter.close)

    def make_room(self, names: Sequence[str]) -> None:
        """Close the drafters of these names, to be replaced or put back."""
        for drafter in self._all():
            if drafter.name in names:
                self._guard(drafter, drafter.close)
                self._drop(drafter.name)
                self.closed.append(drafter.name)

    def put_back(self, drafter: Drafter) -> None:
        """A drafter like one that was closed to make room."""
        self._drafters[drafter.name] = drafter
        absorb = getattr(drafter, "absorb", None)
        if absorb is not None:
            self._absorbers[drafter.name] = Absorber(absorb, _reads(drafter))

    def _drop(self, name: str) -> None:
        self._drafters.pop(name, None)
        self._absorbers.pop(name, None)

    def draft(
        self, requests: Sequence[Drafted], limits: Limits
    ) -> tuple[list[list[Draft]], dict[str, float]]:
        """The candidates of each request, and the milliseconds that each drafter took."""
        candidates: list[list[Draft]] = [[] for _ in requests]
        spent: dict[str, float] = {}
        for drafter in self._all():
            limited = limits.get(drafter.name, ())
            asked = [(i, limit) for i, limit in enumerate(limited) if limit and limit.max_tokens > 0]
            if not asked:
                continue
            began = self._clock()
            for i, _ in asked:
                self._absorb_late(drafter, requests[i].view)
                self._catch_up(requests[i].id)
            if drafter.name in self._drafters:
                self._guard(drafter, self._draft, drafter, asked, requests, candidates)
            spent[drafter.name] = ms = 1e3 * (self._clock() - began)
            for i, _ in asked:
                requests[i].stats.drafting(drafter.name, ms / len(asked))
        return candidates, spent

    def _draft(
        self,
        drafter: Drafter,
        asked: Sequence[tuple[int, DraftLimit]],
        requests: Sequence[Drafted],
        candidates: list[list[Draft]],
    ) -> None:
        drafts = drafter.draft([(requests[i].view, limit) for i, limit in asked])
        for (i, limit), draft in zip(asked, drafts, strict=True):
            if draft is None:
                continue
            self._check(draft, limit, drafter.name)
            text = self._before_placeholder(draft)
            useful = requests[i].sampler.prune(text) if text else None
            if useful is not None:
                candidates[i].append(useful)

    def _before_placeholder(self, draft: Draft) -> Draft:
        """Of a draft what comes before a row of an image: such rows are no text."""
        if self._placeholder not in draft.tokens:
            return draft
        return draft.cut(draft.tokens.index(self._placeholder))

    def _check(self, draft: Draft, limit: DraftLimit, name: str) -> None:
        if draft.source != name:
            raise ValueError(f"drafted in the name of {draft.source!r}")
        if len(draft.confidence) > len(draft) or (draft.probs is not None and len(draft.probs) != len(draft)):
            raise ValueError("has more confidences than tokens, or not as many distributions")
        if not all(isfinite(it) for it in (*draft.confidence, *draft.features.values())):
            raise ValueError("has confidences or features that are no finite numbers")
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

    def _guard(
        self, drafter: Drafter, call: Callable[[Unpack[Arguments]], Result], *args: *Arguments
    ) -> Result | None:
        try:
            return call(*args)
        except Exception as error:  # noqa: BLE001 - plugins may raise anything; plain decoding goes on
            reason = error.message if isinstance(error, ForedraftError) else repr(error)
            logger.warning("Drafter %s failed and is no longer used: %s", drafter.name, reason)
            self.notes.append(f"drafter {drafter.name} failed and is no longer used: {reason}")
            self._drop(drafter.name)
            self._close_failed(drafter)
        return None

    def _close_failed(self, drafter: Drafter) -> None:
        try:
            drafter.close()
        except Exception:
            logger.exception("Drafter %s could not even be closed", drafter.name)


def _reads(drafter: Drafter) -> int:
    """The most tokens of a text that it reads before a draft; 0 for all."""
    return int(getattr(drafter, "reads", 0))


def _whole(match_length: Callable[[RequestView], int], request: RequestView) -> int:
    """What a drafter's `match_length` gives. Raises TypeError where that is no whole number."""
    length = match_length(request)
    if not isinstance(length, int):
        raise TypeError(f"match_length gave {length!r}, which is no whole number")
    return length
