"""Which sequence holds which tokens: ended requests leave their KV cells to be reused by the next turn."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.engine.prefix.disk import Fetch, PrefixDisk
from foredraft.errors import ForedraftError
from foredraft.images import before_run
from foredraft.protocols import Model
from foredraft.sequences import common_prefix
from foredraft.types import Rollback, Timings

logger = logging.getLogger(__name__)

MIN_COPIED_TOKENS = 4
"""Fewer shared tokens are computed again rather than copied from another sequence."""


@dataclass(slots=True)
class _Slot:
    """A sequence and the tokens that it holds, of which the first `prompt_length` were the prompt.

    `used` counts up with every request that gets a sequence.
    """

    seq: int
    tokens: tuple[int, ...] = ()
    prompt_length: int = 0
    scope: str = ""
    adapter: str = ""
    busy: bool = False
    used: int = 0


class PrefixCache:
    """The model's sequences, free ones with what they still hold. Texts come as tokens in which the rows of
    images are keys (`images.keyed`): negative numbers.

    A new request gets the free sequence that shares the longest prefix with its prompt, and only the rest
    is computed. Sequences of another scope are never reused: how fast a prompt is answered would tell one
    user what another asked. With a `disk` what has to make room is saved there, and read back where that
    beats computing it.
    """

    def __init__(self, model: Model) -> None:
        self.disk: PrefixDisk | None = None
        self._model = model
        self._slots = [_Slot(seq) for seq in range(model.capabilities.sequences)]
        self._clock = 0

    @property
    def kept_tokens(self) -> int:
        """Tokens that ended requests have left in the KV cache."""
        return sum(len(slot.tokens) for slot in self._slots if not slot.busy)

    def fetch(self, prompt: Sequence[int], scope: str = "") -> Fetch | None:
        """Begin to read from the disk what `acquire` can use for a prompt; None if there is nothing."""
        if self.disk is None:
            return None
        held = (self._usable(slot, prompt, scope) for slot in self._slots if not slot.busy)
        return self.disk.fetch(prompt[: _most(prompt)], scope, max(held, default=0))

    def acquire(
        self, prompt: Sequence[int], scope: str = "", fetch: Fetch | None = None, adapter: str = ""
    ) -> tuple[int, int] | None:
        """(sequence, tokens already in its cache) for a prompt, or None when all sequences are busy. `fetch`
        is what is being read from the disk for it; this waits until it has been read. `adapter`: what it is
        computed with, which `scope` says as well.

        At least the prompt's last token is left to compute: its logits are needed.
        """
        free = [slot for slot in self._slots if not slot.busy]
        if not free:
            return None
        usable = [(self._usable(slot, prompt, scope), slot) for slot in free]
        shared, source = max(usable, key=lambda entry: (entry[0], -entry[1].used))
        # Where most of what it holds is another conversation's, that stays, and its beginning is copied.
        slot = source if shared and 2 * shared >= len(source.tokens) else self._spare(free)
        self._save(slot, unless_kept=self._usable(slot, prompt, scope))
        try:
            self._adapt(slot, adapter)
            shared = self._restore(slot, fetch, shared) or self._prepare(slot, source, shared)
        except ForedraftError as error:  # it is computed anew instead
            logger.warning("A kept prefix could not be reused: %s", error.message)
            self.drop(slot.seq)
            shared = 0
        self._clock += 1
        slot.busy, slot.used, slot.scope, slot.prompt_length = True, self._clock, scope, len(prompt)
        return slot.seq, shared

    def _adapt(self, slot: _Slot, adapter: str) -> None:
        """Empty a sequence that was computed with another adapter; none of its cells can be used."""
        if slot.adapter != adapter:
            self._model.release(slot.seq)
            self._model.adapt(slot.seq, adapter)
            slot.adapter = adapter

    def _spare(self, free: Sequence[_Slot]) -> _Slot:
        """The free sequence to overwrite: an empty one, or else the least recently used.

        Of empty ones the one with the most running neighbours, then the first. Backends that keep sequences
        apart compute those in one pass whose numbers follow one another.
        """
        running = {slot.seq for slot in self._slots if slot.busy}

        def value(slot: _Slot) -> tuple[int, int, int]:
            if slot.tokens:
                return slot.used, 0, slot.seq
            return -1, -len(running & {slot.seq - 1, slot.seq + 1}), slot.seq

        return min(free, key=value)

    def _restore(self, slot: _Slot, fetch: Fetch | None, held: int) -> int:
        """Restore what was read from the disk if that is more than a sequence holds; how many tokens."""
        if self.disk is None or fetch is None or fetch.shared <= held:
            return 0
        return fetch.shared if self.disk.restore(slot.seq, fetch) else 0

    def _save(self, slot: _Slot, *, unless_kept: int = 0) -> None:
        """Save on disk what a free sequence holds, if more than its first `unless_kept` tokens are to go, and
        an interrupt has not emptied it.
        """
        there = self._model.length(slot.seq) >= len(slot.tokens)
        if self.disk is not None and len(slot.tokens) > unless_kept and there:
            prompt_only = len(slot.tokens) == slot.prompt_length
            self.disk.save(slot.seq, slot.tokens, slot.scope, kept=unless_kept, prompt_only=prompt_only)

    def _prepare(self, slot: _Slot, source: _Slot, shared: int) -> int:
        """Leave the first `shared` tokens of `source` in `slot`; returns how many are there."""
        if slot is source and shared:
            self._model.truncate(slot.seq, shared)
            return shared
        if slot is not source and shared >= MIN_COPIED_TOKENS and self._can_copy(source.seq, shared):
            self._model.fork(source.seq, slot.seq, shared)
            return shared
        self._model.release(slot.seq)
        return 0

    def _can_copy(self, seq: int, length: int) -> bool:
        capabilities = self._model.capabilities
        whole = capabilities.rollback is not Rollback.TRUNCATE  # `reachable` has answered for these
        return capabilities.fork and (whole or capabilities.copy_reaches(self._model.length(seq), length))

    def _usable(self, slot: _Slot, prompt: Sequence[int], scope: str) -> int:
        if slot.scope != scope:
            return 0
        shared = before_run(prompt, min(common_prefix(slot.tokens, prompt), _most(prompt)))
        return before_run(prompt, self._model.reachable(slot.seq, shared))

    def release(self, seq: int, tokens: Sequence[int]) -> None:
        """Free the sequence of a request that is over, and keep the cells of `tokens`. What may be left
        after them of a round that was interrupted is dropped, and everything if some of them are lost.
        """
        slot = self._slots[seq]
        slot.busy = False
        slot.tokens = tuple(tokens)
        if self._model.length(seq) < len(tokens):
            self.drop(seq)
            return
        try:
            if self._model.length(seq) > len(tokens):
                self._model.truncate(seq, len(tokens))
        except ForedraftError as error:
            logger.warning("A sequence could not be kept: %s", error.message)
            self.drop(seq)

    def evict(self) -> bool:
        """Empty the least recently used free sequence; False if all are empty."""
        kept = [slot for slot in self._slots if not slot.busy and slot.tokens]
        if not kept:
            return False
        slot = min(kept, key=lambda slot: slot.used)
        self._save(slot)
        self.drop(slot.seq)
        return True

    def observe(self, timings: Timings) -> None:
        """Learn the cost of a prompt from the timings of its answer."""
        if self.disk is not None:
            self.disk.observe(timings)

    def close(self) -> None:
        """Save what is kept, one after the other: all of it at once may not fit in memory."""
        if self.disk is None:
            return
        for slot in self._slots:
            if not slot.busy:
                self._save(slot)
                self.disk.flush()
        self.disk.close()
        self.disk = None

    def drop(self, seq: int) -> None:
        """Empty a sequence and free it: its cells are needed, or cannot be trusted."""
        self._model.release(seq)
        slot = self._slots[seq]
        slot.busy, slot.tokens = False, ()


def _most(prompt: Sequence[int]) -> int:
    """How many tokens of a prompt may come from a cache: all but the last, whose logits are needed."""
    return before_run(prompt, max(len(prompt) - 1, 0))
