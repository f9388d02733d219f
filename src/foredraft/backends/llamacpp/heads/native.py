"""What heads in llama.cpp share: their sequences, and forwards of rows that are a token and a hidden state.

A head has a context of its own beside the target's. llama.cpp returns the logits and hidden states of a
head's rows rightly only if all rows of a pass return them, or none: some architectures select rows before
the hidden state is taken, others after it, EAGLE-3 never. So a forward is divided into rows without and with
logits, or all return them if they are few.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from foredraft.backends.bounds import not_numbers
from foredraft.backends.llamacpp import ext, sequence_state
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.graphs import Graphs
from foredraft.backends.llamacpp.heads.batch import HeadBatch, Pairs
from foredraft.backends.llamacpp.spoiled import SpoiledCells
from foredraft.errors import BackendError, OutOfKVError
from foredraft.types import Features, HeadRows, Logits, ModelInfo

TOGETHER = 16
"""Rows up to which all return logits if one of them is to: a pass more costs more than logits that are
dropped.
"""

_NO_SLOT = 1


@dataclass(frozen=True, slots=True)
class Opened:
    """A head's context, and its weights if it has any of its own. `threads`: how many the target uses now;
    `forget` is called by a head that is closed.
    """

    context: Any
    weights: Any
    info: ModelInfo
    threads: Callable[[], int]
    forget: Callable[[NativeHead], None]

    def free(self) -> None:
        """Free what belongs to the head."""
        lib.llama_free(self.context)
        if self.weights is not None:
            lib.llama_model_free(self.weights)


class NativeHead:
    """A head with a KV cell for each row. `needs`: the target's hidden states that it reads, of `size`
    numbers each; `state`: numbers of its own hidden states.
    """

    trees = False
    window = 0
    block = 0
    _graph = "rows"
    """What is computed, for the graphs that are kept."""

    def __init__(
        self, opened: Opened, needs: tuple[str, ...], *, size: int, state: int, sequences: int
    ) -> None:
        self.info = opened.info
        self.needs = needs
        self.sequences = sequences
        self._columns = len(needs) * size
        self._state = state
        self._opened: Opened | None = opened
        self._threads = 0
        self._closed_by_target = False
        self._batch = HeadBatch(int(lib.llama_n_batch(opened.context)))
        self._first = [0] * sequences
        self._end = [0] * sequences
        self._own: dict[int, Features] = {}
        """Its hidden state of each sequence's last row, if that returned logits; shape (1, numbers)."""
        self._spoiled = SpoiledCells()
        self._known: int | None = None
        """A token that it knows."""
        ext.functions().set_embeddings_nextn(opened.context, True, True)  # noqa: FBT003 - C
        self._plan()
        self._graphs = Graphs(opened.context, sequences)

    def _plan(self) -> None:
        """Compute a row, for which llama.cpp plans its memory, before a graph is kept."""
        nothing = np.zeros((1, self._state), np.float32)
        self._check(
            lib.llama_decode(self._context, self._batch.fill([Pairs(0, 0, [0], nothing, 0)], wanted=True))
        )
        self._cut(0, 0)

    @property
    def _context(self) -> Any:
        if self._opened is None:
            reason = "its model was closed before it" if self._closed_by_target else "it was closed"
            raise BackendError(f"The head {self.info.name} cannot be used: {reason}.", hint="Load it again.")
        return self._opened.context

    # --- forwards ---------------------------------------------------------------------------------------

    def forward(self, batch: Sequence[HeadRows]) -> Logits:
        self._share_threads()
        self._check_batch(batch)
        if self._spoiled.stale:
            self._wipe()
        pairs, own = self._pairs(batch), dict(self._own)
        try:
            rows = self._compute(batch, pairs)
        except BaseException:
            self._own = own
            for part in batch:  # interrupted, or an error of llama.cpp
                self._spoiled.looked(part.seq, bad=True)
                self._cut(part.seq, self._end[part.seq])
            raise
        self._look(batch, rows)
        for part in batch:
            if self._first[part.seq] == self._end[part.seq]:
                self._first[part.seq] = part.start
            self._end[part.seq] = part.start + len(part.tokens)
        return rows

    def _look(self, batch: Sequence[HeadRows], rows: Logits) -> None:
        """See which of the rows of logits are not numbers."""
        if self._spoiled.computed(batch, self._not_numbers(rows)):
            self._spoiled.stale = True  # a block's rows are dropped already

    def _not_numbers(self, rows: Logits) -> npt.NDArray[np.bool_]:
        """Which rows are not numbers; of such a row none is, but for tokens that the head does not know: they
        have -inf, always the same ones. So a token that it knows is looked at, once one is found.
        """
        if self._known is not None:
            return not_numbers(rows[:, self._known :])
        bad: npt.NDArray[np.bool_] = np.isnan(rows.max(axis=1, initial=-np.inf))
        if not bad.all():
            self._known = int(rows[bad.argmin()].argmax())
        return bad

    def _wipe(self) -> None:
        """Overwrite what was dropped and is not numbers."""
        context = self._context
        self._spoiled.wipe(
            lib.llama_get_memory(context),
            self._holding(),
            lambda seq: sequence_state.save(context, seq, sequence_state.ALL),
            lambda seq, cells: self._put_back(context, seq, cells),
            self.release,
        )

    def _holding(self) -> list[int]:
        """The sequences that have cells."""
        return [seq for seq in range(self.sequences) if self._first[seq] < self._end[seq]]

    def _put_back(self, context: Any, seq: int, cells: bytearray) -> None:
        if not sequence_state.load(context, seq, sequence_state.ALL, cells):
            raise BackendError("llama.cpp could not put back the cells of a head.")

    def _share_threads(self) -> None:
        context = self._context
        assert self._opened is not None
        if (now := self._opened.threads()) != self._threads:
            lib.llama_set_n_threads(context, now, now)
            self._threads = now

    def _check_batch(self, batch: Sequence[HeadRows]) -> None:
        seen: set[int] = set()
        for rows in batch:
            if not 0 <= rows.seq < self.sequences:
                raise BackendError(f"The head has no sequence {rows.seq}; there are {self.sequences}.")
            if rows.seq in seen or not rows.tokens or not 0 <= rows.logits <= self._most_logits(rows):
                raise BackendError(f"These are no rows of sequence {rows.seq} of a head's forward.")
            seen.add(rows.seq)
            if rows.parents is not None:
                raise BackendError("This head has no trees.")
            if min(rows.tokens) < 0 or max(rows.tokens) >= self.info.vocab_size:
                raise BackendError("A token is not in the vocabulary.")
            self._check_states(rows)
            self._check_place(rows)

    def _most_logits(self, rows: HeadRows) -> int:
        return len(rows.tokens)

    def _check_states(self, rows: HeadRows) -> None:
        if rows.features is not None:
            if rows.start < 1 or rows.features.shape != (len(rows.tokens), self._columns):
                raise BackendError("Each row needs the features of the token before its own.")
        elif len(rows.tokens) != 1 or rows.seq not in self._own:
            raise BackendError(f"The head has no hidden state for these rows of sequence {rows.seq}.")

    def _check_place(self, rows: HeadRows) -> None:
        held = self._end[rows.seq] - self._first[rows.seq]
        if held and rows.start != self._end[rows.seq]:
            raise BackendError(
                f"Rows of sequence {rows.seq} start at {rows.start}; the head's end at {self._end[rows.seq]}."
            )
        if held + len(rows.tokens) > self.info.context_length:
            raise OutOfKVError(f"The head has no room for {len(rows.tokens)} rows of sequence {rows.seq}.")

    def _pairs(self, batch: Sequence[HeadRows]) -> list[Pairs]:
        """The rows as the context gets them, with those of adjacent sequences side by side."""
        states = self._states_for(batch)
        pairs, place = [], 0
        for rows, of in zip(batch, states, strict=True):
            pairs.append(Pairs(rows.seq, rows.start, rows.tokens, of, place))
            place += len(rows.tokens)
        return sorted(pairs, key=lambda part: part.seq)

    def _states_for(self, batch: Sequence[HeadRows]) -> list[Features]:
        """The hidden states beside the tokens."""
        return [self._own[rows.seq] if rows.features is None else rows.features for rows in batch]

    def _compute(self, batch: Sequence[HeadRows], pairs: Sequence[Pairs]) -> Logits:
        """Append the rows, and return the logits of those that asked for them."""
        wanted = {rows.seq: rows.logits for rows in batch}
        total, asking = sum(map(len, pairs)), sum(wanted.values())
        if asking and total > min(TOGETHER, self._batch.capacity):
            silent = [part.part(0, len(part) - wanted[part.seq]) for part in pairs]
            pairs = [part.part(len(part) - wanted[part.seq], len(part)) for part in pairs]
            self._run(silent, wanted=False)
        return self._answer(batch, *self._run(pairs, wanted=bool(asking)))

    def _answer(
        self, batch: Sequence[HeadRows], rows: Logits, states: Features, places: Sequence[int]
    ) -> Logits:
        """The logits that were asked for, of rows at these `places`. Keeps the states to go on from."""
        where = {place: row for row, place in enumerate(places)}
        asked, place = [], 0
        for part in batch:
            place += len(part.tokens)
            asked += [where[place - i] for i in range(part.logits, 0, -1)]
            self._own.pop(part.seq, None)
            if part.logits:
                self._own[part.seq] = states[where[place - 1]][None].copy()
        return rows if asked == list(range(len(rows))) else rows[asked]

    def _run(self, pairs: Sequence[Pairs], *, wanted: bool) -> tuple[Logits, Features, list[int]]:
        """Compute rows in as many forwards as they take. With `wanted` also returns their logits, their
        hidden states and their places.
        """
        found: list[tuple[Logits, Features]] = []
        places: list[int] = []
        forwards = list(divided(pairs, self._batch.capacity))
        for parts in forwards:
            self._decode(parts, wanted=wanted)
            if wanted:
                count = sum(map(len, parts))
                logits, states = self._logits(count), self._states(count)
                found.append((logits, states) if len(forwards) == 1 else (logits.copy(), states.copy()))
                places += [part.place + i for part in parts for i in range(len(part))]
        if len(found) == 1:
            return *found[0], places
        if not found:
            return np.empty((0, self.info.vocab_size), np.float32), np.empty((0, self._state), np.float32), []
        return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found]), places

    def _decode(self, parts: Sequence[Pairs], *, wanted: bool) -> None:
        count = sum(map(len, parts))
        shape = [(part.seq, len(part)) for part in parts]
        self._graphs.use((self._graph, wanted, *shape), count)
        self._check(lib.llama_decode(self._context, self._batch.fill(parts, wanted=wanted)))

    def _check(self, status: int) -> None:
        if status == _NO_SLOT:
            raise OutOfKVError("The head's KV cache has no room for this forward.")
        if status:
            raise BackendError(f"llama.cpp failed to compute a head (code {status}).")

    def _logits(self, rows: int) -> Logits:
        address = ctypes.cast(lib.llama_get_logits(self._context), ctypes.c_void_p).value
        return _view(address, rows, self.info.vocab_size)

    def _states(self, rows: int) -> Features:
        """The head's hidden states of the last forward's rows that returned logits."""
        return _view(ext.functions().get_embeddings_nextn(self._context), rows, self._state)

    # --- sequences --------------------------------------------------------------------------------------

    def length(self, seq: int) -> int:
        return self._end[seq]

    def truncate(self, seq: int, length: int) -> None:
        self._own.pop(seq, None)
        if length >= self._end[seq]:
            return
        if length <= self._first[seq]:
            self.release(seq)
            return
        self._cut(seq, length)
        self._end[seq] = length
        self._spoiled.dropped(seq, length)

    def release(self, seq: int) -> None:
        self._own.pop(seq, None)
        self._cut(seq, 0)
        self._first[seq] = self._end[seq] = 0
        self._spoiled.dropped(seq, 0)

    def _cut(self, seq: int, length: int) -> None:
        """Drop the sequence's cells from position `length` on."""
        if not lib.llama_memory_seq_rm(lib.llama_get_memory(self._context), seq, length, -1):
            raise BackendError(f"llama.cpp could not cut sequence {seq} of a head to {length} tokens.")

    def close(self) -> None:
        if self._opened is not None:
            self._graphs.close()
            self._opened.free()
            self._opened.forget(self)
            self._opened = None
            self._own.clear()
            self._batch = HeadBatch(0)

    def target_closes(self) -> None:
        """The target, whose weights the head may use, is about to be freed."""
        self._closed_by_target = self._opened is not None
        self.close()


def divided(pairs: Sequence[Pairs], most: int) -> Sequence[list[Pairs]]:
    """The rows in forwards of at most `most`."""
    forwards: list[list[Pairs]] = []
    room = 0
    for part in pairs:
        first = 0
        while first < len(part):
            if not room:
                forwards.append([])
                room = most
            end = min(len(part), first + room)
            forwards[-1].append(part.part(first, end))
            room -= end - first
            first = end
    return forwards


def _view(address: int | None, rows: int, columns: int) -> Features:
    if not address:
        raise BackendError("llama.cpp returned nothing for a head.")
    return np.ctypeslib.as_array((ctypes.c_float * (rows * columns)).from_address(address)).reshape(
        rows, columns
    )
