"""A loaded GGUF as a `Model`: forwards, and the KV cache of each sequence.

llama.cpp keeps a few versions of a recurrent state (`n_rs_seq`), one for each of the last rows of the last
forward. A rollback to before the first of these rows, or past a row that followed a rollback, reports success
but continues from a wrong state (seen in build 11549). So `spare` counts the rows that can be
rolled back.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from foredraft.backends.bounds import check_batch
from foredraft.backends.llamacpp import abi, devices
from foredraft.backends.llamacpp.batch import Batch
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.features import Watched
from foredraft.backends.llamacpp.free_cores import FreeCores
from foredraft.backends.llamacpp.graphs import Graphs
from foredraft.backends.llamacpp.passes import Passes, count_passes
from foredraft.backends.llamacpp.streams import Streams
from foredraft.backends.llamacpp.tokenizer import LlamaCppTokenizer
from foredraft.errors import BackendError, OutOfKVError, UnsupportedModelError
from foredraft.protocols import Head, Model
from foredraft.types import Capabilities, Features, Logits, ModelInfo, Rollback, Rows

if TYPE_CHECKING:
    from foredraft.backends.llamacpp.heads.native import NativeHead
    from foredraft.backends.llamacpp.heads.opening import Opener

UNTILED_ROWS = 63
"""Maximum rows of one sequence with row-by-row attention for any KV types (docs/exactness.md)."""

_log = logging.getLogger(__name__)

_NO_SLOT = 1
_ALL = abi.LLAMA_STATE_SEQ_FLAGS_NONE
_RECURRENT = abi.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


def is_recurrent(weights: Any) -> bool:
    """Whether the model has a recurrent state, with or without attention."""
    return bool(lib.llama_model_is_recurrent(weights) or lib.llama_model_is_hybrid(weights))


def _places(batch: Sequence[Rows], order: Sequence[int]) -> list[int]:
    """The positions of the logits of the batch's rows, in its own order, if they were computed in `order`."""
    first, end = [0] * len(batch), 0
    for i in order:
        first[i] = end
        end += batch[i].logits
    return [first[i] + row for i, rows in enumerate(batch) for row in range(rows.logits)]


class LlamaCppModel:
    """Owns llama.cpp's model and context. Each sequence has its own stream of KV cells.

    With separate streams, llama.cpp computes sequences in one pass only if their numbers are consecutive in
    the batch (`split_equal`): four rows of descending sequences are four passes over the weights, which take
    1.5 to 2 times as long as one if a forward is limited by reading the weights. So rows are sorted, padded
    if that saves a pass (`passes`), and sequences that are computed together get adjacent streams
    (`streams`). llama.cpp only knows streams: every native call gets a sequence's stream.

    With `cores` the number of threads follows the machine's load; no bit may depend on it. `users` are the
    open models on the same weights, `again` opens another.
    """

    def __init__(
        self,
        weights: Any,
        context: Any,
        tokenizer: LlamaCppTokenizer,
        info: ModelInfo,
        sequences: int,
        *,
        cores: FreeCores | None = None,
        watched: Watched | None = None,
        opener: Opener | None = None,
        users: set[LlamaCppModel],
        again: Callable[[int], Model],
    ) -> None:
        self.tokenizer = tokenizer
        self.info = info
        self._recurrent = is_recurrent(weights)
        self.capabilities = Capabilities(
            rollback=Rollback.BOUNDED if self._recurrent else Rollback.TRUNCATE,
            rollback_bound=int(lib.llama_n_rs_seq(context)) if self._recurrent else 0,
            batch_invariant=False,
            invariance_note="not measured",
            max_rows=UNTILED_ROWS,
            max_batch=int(lib.llama_n_batch(context)),
            sequences=sequences,
            ragged=False,
            window=max(0, int(lib.llama_model_n_swa(weights))),
            features=watched.names if watched else (),
            feature_size=watched.size if watched else 0,
        )
        self._weights: Any = weights
        self._users = users
        self._users.add(self)
        self._again = again
        self._open_context: Any = context
        self._open_memory: Any = lib.llama_get_memory(context)
        self._batch = Batch(self.capabilities.max_batch)
        self._graphs = Graphs(context, sequences)
        self._streams = Streams(sequences)
        self._lengths = [0] * sequences
        self._least = [0] * sequences
        """The fewest cells that each can be cut to, beside none: a restored one has those in its window."""
        self._spare = [0] * sequences
        self._views: dict[tuple[int, int], Logits] = {}
        self._cores = cores
        self._watched = watched
        self._opener = opener
        self._heads: set[NativeHead] = set()
        self._asked: list[tuple[int, int]] = []
        """The last forward's sequences, with their numbers of rows, as asked for."""
        self._laid: list[tuple[int, int]] = []
        """The same as they were computed: sorted, and padded."""
        self._passes = Passes(int(lib.llama_n_ubatch(context)))
        self._ms = self._bytes_a_cell = 0.0

    def with_capabilities(self, **changes: Any) -> LlamaCppModel:
        """Record the measured capabilities."""
        self.capabilities = replace(self.capabilities, **changes)
        return self

    # Using a freed context would end the process, so every native call gets the context from here.

    @property
    def _context(self) -> Any:
        return self._still_open(self._open_context)

    @property
    def _memory(self) -> Any:
        return self._still_open(self._open_memory)

    def _still_open(self, pointer: Any) -> Any:
        if pointer is None:
            raise BackendError(f"The model {self.info.name} is closed.", hint="Load it again.")
        return pointer

    @property
    def idle_threads(self) -> int:
        return self._cores.most - self._cores.threads if self._cores else 0

    def forward(self, batch: Sequence[Rows]) -> Logits:
        context = self._context
        self._share_cores(context)
        check_batch(
            batch,
            self._lengths,
            context_length=self.info.context_length,
            max_batch=self._batch.capacity,
            trees=False,
        )
        # In ascending order drafts of different lengths are split into passes, which left wrong recurrent
        # states (qwen35); in descending order each sequence is a pass of its own.
        apart = self._recurrent and len({len(rows.tokens) for rows in batch}) > 1
        self._bring_together([rows.seq for rows in batch])
        stream = self._streams.of
        self._asked, self._laid = [(rows.seq, len(rows.tokens)) for rows in batch], []
        order = sorted(range(len(batch)), key=lambda i: stream[batch[i].seq], reverse=apart)
        self._decode(context, [batch[i] for i in order])
        for rows in batch:
            self._lengths[rows.seq] += len(rows.tokens)
            # Not the first row: the state before it was overwritten.
            self._spare[rows.seq] = min(self.capabilities.rollback_bound, len(rows.tokens) - 1)
        logits = self._logits(sum(rows.logits for rows in batch))
        return logits if order == list(range(len(batch))) else logits[_places(batch, order)]

    def _share_cores(self, context: Any) -> None:
        if self._cores and (before := self._cores.threads) != (now := self._cores.choose(monotonic())):
            lib.llama_set_n_threads(context, now, now)
            _log.debug("%s: %d threads in place of %d", self.info.name, now, before)

    def _decode(self, context: Any, batch: Sequence[Rows]) -> None:
        """Compute the rows in that order, padded if that is faster."""
        sizes = {rows.seq: len(rows.tokens) for rows in batch}
        verified = all(rows.logits == len(rows.tokens) for rows in batch)
        even = self._evened(sizes) if verified else 0
        if even:
            filled = self._with_idle(batch)
            status = self._compute(context, filled, even)
            if status == 0:
                self._passes.took_evened(self._ms)
                _, row_ms = self._passes.costs() or (0.0, 0.0)
                self._streams.lost((len(filled) - len(batch)) * row_ms)
                return
            if status != _NO_SLOT:
                self._raise(status, filled)
        status = self._compute(context, batch)
        if status:
            self._raise(status, batch)
        streams = self._streams.rows(sizes)
        if verified:
            self._passes.took(streams, self._ms)
        if not self._recurrent and self._streams.scattered(list(sizes)):
            costs = self._passes.costs()
            self._streams.took(sizes, costs[0] if costs else self._ms / count_passes(streams))

    def _bring_together(self, sequences: Sequence[int]) -> None:
        """Move the sequences of a forward to adjacent streams once that is worth its cost. Not with a
        recurrent state: its copy has none of the earlier states that a rollback needs.
        """
        if self._recurrent or not self._streams.scattered(sequences):
            return
        pairs = self._streams.exchanges(sequences, self._lengths)
        if not self._streams.pays(self._streams.cells(pairs, self._lengths) * self._cell_bytes()):
            return
        began, size = perf_counter(), 0
        for a, b in pairs:
            both = self._streams.holds(a), self._streams.holds(b)
            saved = {seq: self.snapshot(seq) for seq in both if self._lengths[seq]}
            for seq in both:
                self.release(seq)
            self._streams.exchange(a, b)
            for seq, cells in saved.items():
                self.restore(seq, cells)
                size += len(cells)
        self._streams.moved(size, 1e3 * (perf_counter() - began))

    def _cell_bytes(self) -> float:
        """Bytes of a cell; 0 while there are no cells."""
        if not self._bytes_a_cell and (longest := max(self._lengths)):
            self._bytes_a_cell = self._state_bytes(self._lengths.index(longest), _ALL) / longest
        return self._bytes_a_cell

    def _compute(self, context: Any, batch: Sequence[Rows], even: int = 0) -> int:
        """Compute a batch and return llama.cpp's status. Padding rows are removed; all rows if it is
        interrupted.
        """
        self._batch.fill(batch, self._streams.of, even)
        shape = [(self._streams.of[rows.seq], len(rows.tokens), rows.logits) for rows in batch]
        self._graphs.use((even, *shape), self._batch.native.n_tokens)
        began = perf_counter()
        try:
            status = lib.llama_decode(context, self._batch.native)
        except BaseException:
            for rows in batch:
                self._forget(rows.seq, self._lengths[rows.seq])
            raise
        if status == 0:
            self._laid = [(rows.seq, max(len(rows.tokens), even)) for rows in batch]
        self._ms = 1e3 * (perf_counter() - began)
        for rows in batch if even else ():
            self._cut(rows.seq, self._lengths[rows.seq] + rows.logits)
        return int(status)

    def _cut(self, seq: int, length: int) -> None:
        """Call `_forget`. Raises BackendError if llama.cpp fails."""
        if not self._forget(seq, length):
            raise BackendError(f"llama.cpp could not cut sequence {seq} to {length} tokens.")

    def _forget(self, seq: int, length: int) -> bool:
        """Drop a sequence's cells beyond `length`, -1 for all; returns whether llama.cpp succeeded."""
        return bool(lib.llama_memory_seq_rm(self._memory, self._streams.of[seq], length, -1))

    def _evened(self, sizes: Mapping[int, int]) -> int:
        """`Passes.evened`, if padding changes no bit, every sequence has room, and time can be measured: on a
        GPU a forward is still running when llama.cpp returns.
        """
        if self._recurrent or not self.capabilities.batch_invariant or self.info.device != devices.CPU:
            return 0
        streams = self._streams.rows(sizes)
        among = range(min(streams, default=0), max(streams, default=-1) + 1)
        cells = {stream: self._lengths[self._streams.holds(stream)] for stream in among}
        even = self._passes.evened(streams, cells)
        fits = all(held + even <= self.info.context_length for held in cells.values())
        return even if fits and even * len(among) <= self._batch.capacity else 0

    def _with_idle(self, batch: Sequence[Rows]) -> list[Rows]:
        """The rows of all streams from the first to the last, one padding row for streams without any."""
        given = {rows.seq: rows for rows in batch}
        first, last = (self._streams.of[rows.seq] for rows in (batch[0], batch[-1]))
        among = [self._streams.holds(stream) for stream in range(first, last + 1)]
        return [given.get(seq) or Rows(seq, self._lengths[seq], (batch[0].tokens[0],), 0) for seq in among]

    def _raise(self, status: int, batch: Sequence[Rows]) -> None:
        if status == _NO_SLOT:
            raise OutOfKVError(
                "The KV cache has no room for this forward.",
                hint="Use a shorter prompt, or a larger context (--ctx) if the model supports it.",
            )
        for rows in batch:  # a fatal error leaves the computed part in the cache
            self._spare[rows.seq] = 0
            self._lengths[rows.seq] = self._held(rows.seq)
        raise BackendError(f"llama.cpp failed to compute a forward (code {status}).")

    def _logits(self, rows: int) -> Logits:
        """A view of llama.cpp's own buffer. It may move when it grows, so its address is part of the key."""
        if rows == 0:
            return np.empty((0, self.info.vocab_size), np.float32)
        pointer = lib.llama_get_logits(self._context)
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        if not address:
            raise BackendError("llama.cpp returned no logits.")
        view = self._views.get((address, rows))
        if view is None:
            size = rows * self.info.vocab_size
            raw = (ctypes.c_float * size).from_address(address)
            view = np.ctypeslib.as_array(raw).reshape(rows, self.info.vocab_size)
            self._views[(address, rows)] = view
        return view

    def features(self, rows: Sequence[int] | None = None) -> Features:
        if self._watched is None:
            raise BackendError("The model was loaded without features.")
        if not self._laid:
            raise BackendError("There are no features: the last forward failed, or there was none.")
        places: Sequence[int] = range(sum(count for _, count in self._asked)) if rows is None else rows
        if self._laid[: len(self._asked)] != self._asked:
            first, end = {}, 0
            for seq, count in self._laid:
                first[seq], end = end, end + count
            laid = [first[seq] + row for seq, count in self._asked for row in range(count)]
            places = [laid[row] for row in places]
        return self._watched.rows(self._context, places)

    def load_head(self, path: Path | None, *, sequences: int) -> Head:
        if self._opener is None:
            raise UnsupportedModelError(
                f"{self.info.name} was loaded without the hidden states that a head reads.",
                hint="Name the head when the model is loaded.",
            )
        from foredraft.backends.llamacpp.heads.opening import Target  # which opens them beside this model

        target = Target(self, self._still_open(self._weights), self._context)
        head = self._opener.open(target, path, sequences)
        self._heads.add(head)
        return head

    def unwatched(self, sequences: int) -> Model:
        """A model on the same weights that keeps no hidden states, with so many sequences. It can be closed
        before this one and after it. Raises CapacityError, BackendError.
        """
        self._still_open(self._weights)
        return self._again(sequences)

    def forget_head(self, head: NativeHead) -> None:
        """Called by a head that is closed."""
        self._heads.discard(head)

    def threads(self) -> int:
        """How many its forwards use now."""
        return self._cores.threads if self._cores else int(self.info.settings["threads"])

    def length(self, seq: int) -> int:
        return self._lengths[seq]

    def to_recompute(self, seq: int) -> int:  # noqa: ARG002
        return 0

    def truncate(self, seq: int, length: int) -> None:
        held = self._lengths[seq]
        if length > held:
            raise BackendError(f"Cannot truncate sequence {seq} to {length}: it holds {held} tokens.")
        if length == held:
            return
        if length == 0:
            self.release(seq)
            return
        if self._recurrent and held - length > self._spare[seq]:
            raise BackendError(
                f"{held - length} tokens of sequence {seq} cannot be rolled back: it has a recurrent state."
            )
        if length < self._least[seq]:
            raise BackendError(
                f"Sequence {seq} cannot be cut to {length} tokens: it has no cells before its sliding window."
            )
        self._cut(seq, length)
        self._lengths[seq] = length
        self._spare[seq] = 0

    def spare(self, seq: int) -> int:
        return self._spare[seq] if self._recurrent else self._lengths[seq]

    def reachable(self, seq: int, length: int) -> int:
        held = self._lengths[seq]
        reached = min(length, held)
        possible = reached >= self._least[seq] and (not self._recurrent or length >= held)
        return reached if possible else 0

    def checkpoint(self, seq: int, instead_of: object = None) -> object:
        """The recurrent state alone: a few megabytes, whatever the sequence's length."""
        return self._save(seq, _RECURRENT, cast("bytearray | None", instead_of))

    def rewind(self, seq: int, checkpoint: object, length: int) -> None:
        # The state first: only then llama.cpp allows the attention layers to be cut to its position.
        self._load(seq, cast("bytearray", checkpoint), _RECURRENT)
        if not self._forget(seq, length):
            self.release(seq)
            raise BackendError(f"llama.cpp could not cut sequence {seq} to {length} tokens.")
        self._lengths[seq] = length

    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None:
        if list(path) != list(range(len(path))):
            raise BackendError("The llama.cpp backend only supports chains.")
        self.truncate(seq, start + len(path))

    def fork(self, src: int, dst: int, length: int) -> None:
        if length > self._lengths[src]:
            raise BackendError(
                f"Cannot fork {length} tokens of sequence {src}: it holds {self._lengths[src]}."
            )
        if length == 0:
            self.release(dst)
            return
        if src != dst:
            if not self._recurrent and not self.capabilities.copy_reaches(self._lengths[src], length):
                raise BackendError(
                    f"The first {length} of {self._lengths[src]} tokens of sequence {src} cannot be copied: "
                    "their cells are before its sliding window."
                )
            # Not llama_memory_seq_cp: between streams it copies the whole buffer, and only at the next
            # decode, over anything restored into the sequence in the meantime.
            self.restore(dst, self.snapshot(src))
        self.truncate(dst, length)

    def snapshot(self, seq: int) -> bytearray:
        return self._save(seq, _ALL)

    def restore(self, seq: int, snapshot: object) -> None:
        self.release(seq)
        self._load(seq, cast("bytearray", snapshot), _ALL)
        length = self._lengths[seq]
        self._least[seq] = 0 if self.capabilities.copy_reaches(length, 0) or self._recurrent else length - 1

    def _save(self, seq: int, part: int, buffer: bytearray | None = None) -> bytearray:
        """The sequence's state, in `buffer` if that has the right size."""
        size, stream = self._state_bytes(seq, part), self._streams.of[seq]
        if buffer is None or len(buffer) != size:
            buffer = bytearray(size)
        data = (ctypes.c_uint8 * size).from_buffer(buffer)
        written = lib.llama_state_seq_get_data_ext(self._context, data, size, stream, part)
        if written != size:
            raise BackendError(f"llama.cpp saved {written} of {size} bytes of a sequence.")
        return buffer

    def _load(self, seq: int, saved: bytearray, part: int) -> None:
        data = (ctypes.c_uint8 * len(saved)).from_buffer(saved)
        stream = self._streams.of[seq]
        if lib.llama_state_seq_set_data_ext(self._context, data, len(data), stream, part) == 0:
            self.release(seq)
            raise BackendError("llama.cpp could not restore a snapshot.")
        self._lengths[seq] = self._held(seq)
        self._spare[seq] = 0

    def _state_bytes(self, seq: int, part: int) -> int:
        return int(lib.llama_state_seq_get_size_ext(self._context, self._streams.of[seq], part))

    def _held(self, seq: int) -> int:
        """The number of a sequence's cells, as counted by llama.cpp."""
        return int(lib.llama_memory_seq_pos_max(self._memory, self._streams.of[seq])) + 1

    def release(self, seq: int) -> None:
        self._forget(seq, -1)
        self._lengths[seq] = self._spare[seq] = self._least[seq] = 0

    def close(self) -> None:
        if self._open_context is not None:
            for head in list(self._heads):
                head.target_closes()
            self._views.clear()
            self._batch.free()
            self.tokenizer.close()
            self._graphs.close()
            lib.llama_free(self._open_context)
            self._users.discard(self)
            if not self._users:
                lib.llama_model_free(self._weights)
            self._open_context = self._open_memory = self._weights = None
