"""`ngram-cache`: the next token from counts after the last 1 to 4 tokens, at three levels.

The thresholds and the order are those of llama.cpp's lookup decoding (`ngram-cache.cpp`): the longest n-gram
whose next tokens are frequent and unanimous enough proposes the most frequent one, first from the request's
own text (the context level, lax thresholds), then from finished requests' outputs (dynamic, strict), then
from a corpus counted beforehand (static, two tokens); the static counts also weight the other levels'
candidates.

- *context*: an NgramIndex for each n; the newest `OCCURRENCES` occurrences are counted. It is freed with the
  request. About 600 bytes a token if nothing repeats (60 MB at 100,000 tokens).
- *dynamic*: outputs of requests, learned when each ends; at most 6 MB, after which the rarest pairs are
  dropped. Its keys include a secret of the request's scope, so that no text of one scope is proposed in
  another. Saved on `close` to the given file or to one in the store; without either it ends with the process.
  If two processes save the same file, the later one wins.
- *static*: a file from `build_static`, at most 50 MB, the same for every scope.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from foredraft.config import checked_by, read_options
from foredraft.drafters.base import HistoryDrafter
from foredraft.drafters.ngram_cache_file import (
    DYNAMIC,
    DYNAMIC_PAIRS,
    STATIC,
    STATIC_N,
    STATIC_PAIRS,
    TOKENS,
    CountTable,
    Stored,
    UnusableFileError,
    build_static,
    load,
    pairs_of,
    save,
)
from foredraft.drafters.ngram_index import BASE, MASK, NgramIndex, check_range
from foredraft.errors import CapacityError, SpeculationStringError
from foredraft.protocols import Drafter, DrafterContext, RequestView
from foredraft.types import Draft, DraftLimit, ModelInfo, Outcome

__all__ = ["NgramCache", "build_static", "create"]

NAME = "ngram-cache"
LONGEST = 4
OCCURRENCES = 16

Thresholds: TypeAlias = tuple[tuple[int, int], ...]
"""For n = 1 … 4: the minimum number of samples, and the minimum share of the best token in percent."""

LAX: Thresholds = ((2, 66), (2, 50), (1, 50), (1, 50))
STRICT: Thresholds = ((4, 75), (3, 66), (2, 66), (2, 66))

log = logging.getLogger(__name__)


def _read(options: Mapping[str, str]) -> dict[str, Any]:
    defaults: dict[str, int | str] = {"n-min": 1, "n-max": LONGEST, "max": 8, "static": "", "dynamic": ""}
    values = read_options(NAME, options, defaults)
    check_range(NAME, values, "max")
    if not 1 <= values["n-min"] <= values["n-max"] <= LONGEST:
        raise SpeculationStringError(
            f"{NAME}: n-min={values['n-min']} and n-max={values['n-max']} are not a valid range.",
            hint=f"Use 1 ≤ n-min ≤ n-max ≤ {LONGEST}.",
        )
    return values


@checked_by(_read)
def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:
    """Create the drafter. Options: n-min, n-max (1 … 4), max (maximum tokens of a draft), static=FILE,
    dynamic=FILE.

    Raises SpeculationStringError, also if the static file cannot be used; CapacityError for a vocabulary that
    is too large for a pair. A dynamic file that cannot be used is logged and ignored when the first request
    starts.
    """
    values = _read(options)
    if context.target.vocab_size > TOKENS:
        raise CapacityError(f"{NAME} supports vocabularies of at most {TOKENS} tokens.", hint="Use 'suffix'.")
    static = _load_static(Path(values["static"]), context.target) if values["static"] else None
    dynamic = _Dynamic(_dynamic_path(context, values["dynamic"]), context.target)
    return NgramCache(range(values["n-min"], values["n-max"] + 1), values["max"], dynamic, static)


def _load_static(path: Path, target: ModelInfo) -> CountTable:
    try:
        return load(path.expanduser(), STATIC, target.vocab_hash, target.vocab_size).table
    except (OSError, UnusableFileError) as exc:
        raise SpeculationStringError(
            f"{NAME}: the static file {path} cannot be used: {exc}.",
            hint="Build it for this model, or remove static=.",
        ) from exc


def _dynamic_path(context: DrafterContext, given: str) -> Path | None:
    if given:
        return Path(given).expanduser()
    if context.store is None:
        return None
    name = "".join(letter if letter.isalnum() else "-" for letter in context.target.vocab_hash)
    return context.store / f"{NAME}-{name[:64]}.bin"


class _Dynamic:
    """The dynamic level: its table, the secret that separates its scopes, and its file.

    Call `open` before use. The file is read no earlier, because an engine that changes its drafters creates
    the new ones before it closes, and so saves, the old ones.
    """

    def __init__(self, path: Path | None, target: ModelInfo) -> None:
        self._path = path
        self._target = target
        self._opened = False
        self._learned = False
        self.table = CountTable(DYNAMIC_PAIRS)
        self._secret = secrets.token_bytes(16)

    def open(self) -> None:
        """Read the file, if it has not been read."""
        if self._opened:
            return
        self._opened = True
        stored = self._load(self._path) if self._path else None
        if stored:
            self.table, self._secret = stored.table, stored.secret

    def _load(self, path: Path) -> Stored | None:
        fate = "It will be replaced."
        try:
            return load(path, DYNAMIC, self._target.vocab_hash, self._target.vocab_size)
        except FileNotFoundError:
            return None
        except (OSError, UnusableFileError) as exc:
            # Never overwrite a file of another program or model.
            if not (isinstance(exc, UnusableFileError) and exc.replaceable):
                self._path, fate = None, "It is kept, and nothing will be saved."
            log.warning("%s: ignoring the dynamic file %s: %s. %s", NAME, path, exc, fate)
            return None

    def salt(self, scope: str) -> int:
        digest = hashlib.blake2b(scope.encode(), key=self._secret, digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def learn(self, tokens: Sequence[int], first: int, orders: range, salt: int) -> None:
        """Count the tokens from `first` on, each after the n-grams before it."""
        self.table.add(np.concatenate([pairs_of(tokens, n, salt, first) for n in orders]))
        self._learned = True

    def save(self) -> None:
        """Write the file if there is one and something was learned. Failures are logged."""
        if self._path is None or not self._learned:
            return
        try:
            save(Stored(DYNAMIC, self.table, self._secret), self._path, self._target.vocab_hash)
        except OSError as exc:
            log.warning("%s: cannot save the dynamic file %s: %s.", NAME, self._path, exc)
        else:
            self._learned = False


@dataclass(slots=True)
class Context:
    """The context level of one request, and the outputs that the dynamic level learns when it ends.

    `output` is the start of the current output. `finished` holds outputs of earlier turns, and the remaining
    parts of edited ones: each as tokens and the number of leading tokens that are only context.
    """

    indexes: dict[int, NgramIndex]
    salt: int
    prompt_length: int
    output: int
    finished: list[tuple[list[int], int]]


class Vote(NamedTuple):
    """A level's proposal: the token, its share of the samples, their number, and the n-gram's length."""

    token: int
    share: float
    samples: int
    n: int


class NgramCache(HistoryDrafter[Context]):
    """Drafts token by token, each from the first level whose thresholds are met."""

    name = NAME

    def __init__(self, orders: range, longest: int, dynamic: _Dynamic, static: CountTable | None) -> None:
        super().__init__()
        self.orders = orders
        self.longest = longest
        self._dynamic = dynamic
        self._static = static or CountTable(STATIC_PAIRS)

    def start(self, request: RequestView) -> None:
        self._dynamic.open()
        super().start(request)

    def build(self, request: RequestView) -> Context:
        size = len(request.tokens)
        indexes = {n: NgramIndex(n, request.tokens) for n in self.orders}
        return Context(indexes, self._dynamic.salt(request.scope), request.prompt_length, size, [])

    def extend(self, state: Context, request: RequestView, outcome: Outcome) -> None:
        if request.prompt_length != state.prompt_length:  # the conversation's next turn
            self._finish(state, request, outcome.kept)
        for index in state.indexes.values():
            index.update(request.tokens, outcome.kept)

    def remove(self, state: Context, request: RequestView, outcome: Outcome) -> Context:
        if outcome.kept + len(outcome.tokens) != len(request.tokens):
            return self.build(request)
        self._finish(state, request, outcome.kept)
        for index in state.indexes.values():
            index.update(request.tokens, outcome.kept)
        return state

    def _finish(self, state: Context, request: RequestView, end: int) -> None:
        """Record the output up to `end` as final; the text after it was not generated here."""
        if end > state.output:
            start = max(0, state.output - LONGEST)
            state.finished.append((request.tokens[start:end], state.output - start))
        state.output = len(request.tokens)
        state.prompt_length = request.prompt_length

    def propose(self, state: Context, request: RequestView, limit: DraftLimit) -> Draft | None:
        tokens = request.tokens
        window = tokens[-LONGEST:]
        votes: list[Vote] = []
        while len(votes) < min(self.longest, limit.max_tokens):
            vote = self._vote(state, tokens, window)
            if vote is None:
                break
            votes.append(vote)
            window = [*window[1 - LONGEST :], vote.token]
        if not votes:
            return None
        return Draft(
            tokens=tuple(vote.token for vote in votes),
            source=NAME,
            confidence=tuple(vote.share for vote in votes),
            features={"match_length": votes[0].n, "count": votes[0].samples},
        )

    def _vote(self, state: Context, tokens: Sequence[int], window: Sequence[int]) -> Vote | None:
        """The proposal for the token after `window` (the last tokens of history and draft)."""
        keys = _keys(window)
        known = [n for n in reversed(self.orders) if n < len(keys)]
        for n in known:
            places = state.indexes[n].after(tokens, keys[n], window[-n:], OCCURRENCES)
            if not places:
                continue
            counts: dict[int, int] = {}
            for place in places:
                counts[tokens[place]] = counts.get(tokens[place], 0) + 1
            vote = self._choose(n, counts, len(places), keys, LAX)
            if vote is not None:
                return vote
        for n in known if len(self._dynamic.table) else ():
            counts, total = self._dynamic.table.lookup((keys[n] + state.salt) & MASK)
            vote = self._choose(n, counts, total, keys, STRICT)
            if vote is not None:
                return vote
        counts, total = self._after(keys)
        return _settle(STATIC_N, max(counts, key=counts.__getitem__), counts, total, LAX) if counts else None

    def _after(self, keys: Sequence[int]) -> tuple[dict[int, int], int]:
        """The static level's counts for the last two tokens."""
        return self._static.lookup(keys[STATIC_N]) if len(keys) > STATIC_N else ({}, 0)

    def _choose(
        self, n: int, counts: dict[int, int], total: int, keys: Sequence[int], thresholds: Thresholds
    ) -> Vote | None:
        """The best of `counts`, weighted by the static level if there are several."""
        if len(counts) <= 1:
            best = next(iter(counts), None)
        else:
            static, _ = self._after(keys)
            best = max(
                counts, key=lambda token: counts[token] * (100 * static[token] if token in static else 1)
            )
        return None if best is None else _settle(n, best, counts, total, thresholds)

    def size(self, state: Context) -> int:
        return len(state.indexes[self.orders[0]])

    def stop(self, request: RequestView) -> None:
        state = self._states.get(request.id)
        if state is not None:
            self._finish(state, request, len(request.tokens))
            for tokens, first in state.finished:
                self._dynamic.learn(tokens, first, self.orders, state.salt)
        super().stop(request)

    def close(self) -> None:
        self._dynamic.save()
        super().close()


def _keys(window: Sequence[int]) -> list[int]:
    """Keys of the last 1, 2, … tokens, at their own index (ngram_index.window_keys of each length)."""
    keys, scale = [0], BASE
    for token in reversed(window):
        keys.append((keys[-1] + (token + 1) * scale) & MASK)
        scale = scale * BASE & MASK
    return keys


def _settle(n: int, best: int, counts: dict[int, int], total: int, thresholds: Thresholds) -> Vote | None:
    """The vote for `best`, if there are enough samples and its share is large enough."""
    least, percent = thresholds[n - 1]
    if total < least or 100 * counts[best] < percent * total:
        return None
    return Vote(best, counts[best] / total, total, n)
