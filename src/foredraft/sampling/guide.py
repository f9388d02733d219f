"""Tracks an answer in a grammar: which tokens may follow, which must, and which draft tokens are useful.

llguidance's matcher does the parsing. It is deterministic: the allowed tokens are a function of the consumed
tokens, however often others were tried and undone in between. If the grammar leaves only one continuation, it
requires the tokenizer's own spelling of it, so that exactly one token is allowed.

Copies of a matcher share its lexer and the lexer's budget of states: use by other requests or tried drafts
must not end an answer. So a matcher in error is replaced by a new one that has consumed only the answer, and
the call is repeated: the end of an answer is a function of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from foredraft.errors import NoNextTokenError
from foredraft.sampling.trial import error_text
from foredraft.types import Draft, Logits

if TYPE_CHECKING:
    from llguidance import LLMatcher

T = TypeVar("T")

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1, bitorder="little")
_ADDED: Logits = np.where(_BITS == 1, np.float32(0), np.float32(-np.inf))
"""The additions to the eight logits of each byte of a bit mask. Looking masks up in this takes 11 µs for
49,152 tokens; choosing by a boolean array takes 30 to 140 µs.
"""


class Guide:
    """Follows one request's answer through its constraint.

    `start` is a matcher that may be shared, `fresh` creates one that shares nothing. `ends` are the tokens
    that end a text: allowed if the grammar may end, and with `ignore_eos` only if nothing else is. `complete`
    becomes true with the token after which nothing may follow.
    """

    def __init__(
        self,
        start: LLMatcher,
        fresh: Callable[[], LLMatcher],
        vocab_size: int,
        ends: frozenset[int],
        *,
        ignore_eos: bool = False,
    ) -> None:
        self._fresh = fresh
        self._matcher = start.deep_copy()
        self._vocab_size = vocab_size
        self._ends = ends
        self._followed: list[int] = []
        self._going_on = _without(ends, vocab_size) if ignore_eos else None
        self.complete = False

    # --- the answer so far ---------------------------------------------------------------------------

    def advance(self, tokens: Sequence[int]) -> None:
        """Consume committed tokens. Tokens after the end are ignored.

        Raises NoNextTokenError for a token that the constraint forbids, or if it became too complex.
        """
        for token in tokens:
            if self.complete:
                return
            if token in self._ends:
                self.complete = True
                return
            if not self._asked(lambda token=token: self._matcher.consume_token(token)):  # type: ignore[misc]
                raise NoNextTokenError(
                    f"The constraint does not allow the answer to continue: {error_text(self._matcher)}",
                    hint="Use a simpler schema, regex or grammar.",
                )
            self._followed.append(token)
            self.complete = self._matcher.is_stopped()

    def forced(self) -> list[int]:
        """The tokens that must come next: as many as are certain, none if there is a choice."""
        return [] if self.complete else self._asked(lambda: self._matcher.compute_ff_tokens())  # noqa: PLW0108 - the matcher may have been replaced

    def allows(self, token: int) -> bool:
        """Whether a token may come next, if `forced` returned none.

        Takes 1 to 3 µs, while `mask` may take 100.
        """
        if self.complete or (self._going_on is not None and token in self._ends):
            return False  # `mask` handles the exceptions
        return self._asked(lambda: self._matcher.validate_tokens([token])) == 1

    def mask(self, row: Logits, extra: Sequence[int] = ()) -> Logits:
        """A copy of the row, shape (vocabulary,), with −inf for every token that may not follow `extra`.

        Nothing is masked if `extra` itself is forbidden. Raises NoNextTokenError if the constraint became too
        complex, or no token may follow.
        """
        try:
            return self._masked(row, extra)
        except NoNextTokenError:  # the matcher has been replaced
            return self._masked(row, extra)

    def _masked(self, row: Logits, extra: Sequence[int]) -> Logits:
        taken, ended = self._try(extra)
        try:
            self._check()
            if taken + ended < len(extra):
                return row
            over = ended or self._matcher.is_stopped()
            if over and not self._ends:
                return row
            bits = ~_without(self._ends, self._vocab_size) if over else self._bits()
        finally:
            self._take_back(taken)
        added = _ADDED.take(bits, axis=0).reshape(-1)[: self._vocab_size]
        if row.size > added.size:  # a model may have more logits than tokens
            added = np.concatenate([added, np.full(row.size - added.size, -np.inf, np.float32)])
        masked: Logits = row + added
        return masked

    def _bits(self) -> npt.NDArray[np.uint8]:
        """The allowed tokens, eight per byte."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        if self._going_on is not None:
            kept = bits & self._going_on[: bits.size]
            return kept if kept.any() else bits
        return bits

    def _check(self) -> None:
        if self._matcher.is_error():
            raise NoNextTokenError(
                f"The constraint has become too complex to enforce: {error_text(self._matcher)}",
                hint="Use a simpler schema, regex or grammar.",
            )

    # --- drafts --------------------------------------------------------------------------------------

    def prune(self, draft: Draft) -> Draft | None:
        """The part of a draft that could be accepted; None if that is nothing.

        Tokens that would end the answer are removed as well: the row before them chooses them anyway, and the
        row after them would be computed in vain. A draft that was drawn at random from `probs` is kept whole:
        dropping a token because of its value would change the distribution (its rule rejects a forbidden
        token anyway).
        """
        if draft.probs is not None:
            return draft
        if draft.parents is not None:
            return select(draft, self._useful_nodes(draft.tokens, draft.parents))
        useful = self._useful(draft.tokens)
        return draft.cut(useful) if useful else None

    def _useful(self, tokens: Sequence[int]) -> int:
        """The number of tokens of a chain that could be accepted and do not end the answer."""
        if self.complete:
            return 0
        useful = 0
        try:
            while useful < len(tokens):
                forced = self._matcher.compute_ff_tokens() or tokens[useful : useful + 1]
                taken = self._step(tokens[useful : useful + len(forced)], forced)
                useful += taken
                if taken < len(forced):
                    break
        finally:
            self._take_back(useful)
        return useful

    def _step(self, tokens: Sequence[int], wanted: Sequence[int]) -> int:
        """Try tokens as long as they are the wanted ones and the answer continues after them."""
        taken = 0
        for token, own in zip(tokens, wanted, strict=False):
            if token != own or token in self._ends or not self._matcher.try_consume_tokens([token]):
                break
            if self._matcher.is_stopped():
                self._undo(1)
                break
            taken += 1
        return taken

    def _useful_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """The nodes of a tree that could be accepted and do not end the answer, in order."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(parents):
            children.setdefault(parent, []).append(node)
        useful: list[int] = []

        def visit(parent: int) -> None:
            forced = self._matcher.compute_ff_tokens()
            for node in children.get(parent, ()):
                if self._step(tokens[node : node + 1], forced[:1] or tokens[node : node + 1]):
                    useful.append(node)
                    visit(node)
                    self._undo(1)

        if not self.complete:
            visit(-1)
            self._take_back(0)
        return sorted(useful)

    # --- trying --------------------------------------------------------------------------------------

    def _try(self, tokens: Sequence[int]) -> tuple[int, bool]:
        """Consume tokens as long as they are allowed: (their number, whether the next of them ended the
        text).
        """
        if self.complete:
            return 0, True
        if not tokens:
            return 0, False
        taken = 0
        for token in tokens:
            if token in self._ends:
                return taken, bool(self._matcher.is_accepting())
            if not self._matcher.try_consume_tokens([token]):
                return taken, False
            taken += 1
        return taken, False

    def _undo(self, count: int) -> None:
        """Undo the last tried tokens. In an error state nothing can be undone, but nothing was consumed
        either.
        """
        if count and not self._matcher.is_error():
            self._matcher.rollback(count)

    def _take_back(self, count: int) -> None:
        """Undo all tried tokens. A matcher that exceeded a limit never recovers, so it is replaced."""
        self._undo(count)
        if self._matcher.is_error():
            self._renew()

    def _asked(self, ask: Callable[[], T]) -> T:
        """Query the matcher after the answer so far; repeated with a new one if it exceeded a limit."""
        said = ask()
        if self._matcher.is_error():
            self._renew()
            said = ask()
        return said

    def _renew(self) -> None:
        self._matcher = self._fresh()
        self._matcher.consume_tokens(self._followed)


def _without(tokens: frozenset[int], vocab_size: int) -> npt.NDArray[np.uint8]:
    """A bit mask of everything but these tokens, padded to whole 32-bit words."""
    bits = np.ones(-(-(vocab_size + 1) // 32) * 32, np.uint8)
    bits[sorted(tokens)] = 0
    return np.packbits(bits, bitorder="little")


def select(draft: Draft, nodes: Sequence[int]) -> Draft | None:
    """A tree of these nodes of a tree, None without any; each node's parent must be among them."""
    if not nodes or draft.parents is None:
        return None
    if len(nodes) == len(draft):
        return draft
    place = {node: i for i, node in enumerate(nodes)} | {-1: -1}
    return Draft(
        tokens=tuple(draft.tokens[node] for node in nodes),
        source=draft.source,
        parents=tuple(place[draft.parents[node]] for node in nodes),
        confidence=tuple(draft.confidence[node] for node in nodes if node < len(draft.confidence)),
        features=draft.features,
    )
