"""A loaded GGUF as a `Model`: forwards. What its sequences hold is in `sequences`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from foredraft.backends.bounds import check_batch, not_kept, not_numbers, not_seen, rows_of
from foredraft.backends.llamacpp import devices, sequence_state
from foredraft.backends.llamacpp.adapters import ContextAdapters, Loaded
from foredraft.backends.llamacpp.batch import Batch
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.features import Watched
from foredraft.backends.llamacpp.free_cores import FreeCores
from foredraft.backends.llamacpp.graphs import MOST_ROWS, Graphs
from foredraft.backends.llamacpp.image_rows import compute_image, divided, in_order
from foredraft.backends.llamacpp.logits_views import LogitsViews
from foredraft.backends.llamacpp.passes import Passes, count_passes
from foredraft.backends.llamacpp.row_order import laid_rows, places_of_rows
from foredraft.backends.llamacpp.rpc.library import NO_HOSTS, Hosts
from foredraft.backends.llamacpp.sequences import ContextSequences
from foredraft.backends.llamacpp.tokenizer import LlamaCppTokenizer
from foredraft.errors import BackendError, OutOfKVError, UnsupportedModelError
from foredraft.protocols import Head, Model, Vision
from foredraft.types import Capabilities, Features, Logits, ModelInfo, Rollback, Rows

if TYPE_CHECKING:
    from foredraft.backends.llamacpp.heads.native import NativeHead
    from foredraft.backends.llamacpp.heads.opening import Opener
    from foredraft.backends.llamacpp.vision import LlamaCppVision

UNTILED_ROWS = 63
"""Maximum rows of one sequence with row-by-row attention for any KV types (docs/exactness.md)."""

_log = logging.getLogger(__name__)

_NO_SLOT = 1


def is_recurrent(weights: Any) -> bool:
    """Whether the model has a recurrent state, with or without attention."""
    return bool(lib.llama_model_is_recurrent(weights) or lib.llama_model_is_hybrid(weights))


class LlamaCppModel(ContextSequences):
    """Owns llama.cpp's model and context. Each sequence has its own stream of KV cells.

    With separate streams, llama.cpp computes sequences in one pass only if their numbers are consecutive in
    the batch (`split_equal`): four rows of descending sequences are four passes over the weights, which take
    1.5 to 2 times as long as one if a forward is limited by reading the weights. So rows are sorted, padded
    if that saves a pass (`passes`), and sequences that are computed together get adjacent streams
    (`streams`). llama.cpp only knows streams: every native call gets a sequence's stream.

    A forward computes with one LoRA adapter, so rows of sequences with several take a forward for each.

    With `cores` the number of threads follows the machine's load; no bit may depend on it. `users` are the
    open models on the same weights, `again` opens another. `vision` is freed with the last of them.
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
        adapters: Mapping[str, Loaded] | None = None,
        vision: LlamaCppVision | None = None,
        hosts: Hosts = NO_HOSTS,
        users: set[LlamaCppModel],
        again: Callable[[int], Model],
    ) -> None:
        recurrent = is_recurrent(weights)
        capabilities = Capabilities(
            rollback=Rollback.BOUNDED if recurrent else Rollback.TRUNCATE,
            rollback_bound=int(lib.llama_n_rs_seq(context)) if recurrent else 0,
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
        mrope = vision is not None and vision.mrope
        super().__init__(context, info, capabilities, hosts, recurrent=recurrent, mrope=mrope)
        self.tokenizer = tokenizer
        self._weights: Any = weights
        self._users, self._again = users, again
        users.add(self)
        self._batch = Batch(self.capabilities.max_batch)
        self._loaded = adapters or {}
        self._adapters = ContextAdapters(context, self._loaded)
        self._adapted = [""] * sequences
        self._graphs = Graphs(context, sequences)
        self._views = LogitsViews(info.vocab_size)
        self._padded = False
        """Whether the last forward had rows of padding."""
        self._cores = cores
        self._watched, self._opener, self._vision = watched, opener, vision
        self._heads: set[NativeHead] = set()
        self._asked: list[tuple[int, int]] = []
        """The last forward's sequences, with their numbers of rows, as asked for."""
        self._laid: list[tuple[int, int]] = []
        """The same as they were computed: sorted, and padded."""
        self._mixed: Features | None = None
        """The features of the last forward, if it was several of llama.cpp: with adapters, or images."""
        self._passes = Passes(int(lib.llama_n_ubatch(context)))
        self._ms = self._bytes_a_cell = 0.0

    def with_capabilities(self, **changes: Any) -> LlamaCppModel:
        """Record the measured capabilities."""
        self.capabilities = replace(self.capabilities, **changes)
        return self

    @property
    def vision(self) -> Vision | None:
        return self._vision

    @property
    def idle_threads(self) -> int:
        return self._cores.most - self._cores.threads if self._cores else 0

    @property
    def adapters(self) -> Mapping[str, str]:
        return {name: adapter.key for name, adapter in self._loaded.items()}

    def adapt(self, seq: int, adapter: str) -> None:
        if self._lengths[seq]:
            raise BackendError(f"Sequence {seq} holds cells, so its adapter cannot be changed.")
        if adapter and adapter not in self._loaded:
            raise BackendError(f"{self.info.name} was loaded without an adapter {adapter}.")
        self._adapted[seq] = adapter

    def forward(self, batch: Sequence[Rows]) -> Logits:
        context = self._context
        self._mixed, self._laid, self._padded = None, [], False
        self._wipe()
        self._share_cores(context)
        check_batch(
            batch,
            self._lengths,
            context_length=self.info.context_length,
            max_batch=self._batch.capacity,
            trees=False,
        )
        among = {self._adapted[rows.seq] for rows in batch}
        for adapter in sorted(among):  # before anything is set: it may compute, with another adapter
            self._bring_together([rows.seq for rows in batch if self._adapted[rows.seq] == adapter])
        self._wipe()  # what a neighbour had that moved
        before = {rows.seq: self._lengths[rows.seq] for rows in batch}
        try:
            if len(among) > 1:
                logits = self._forward_mixed(context, batch, sorted(among))
            else:
                self._switch(*among)
                logits = self._forward_alike(context, batch)
        except BaseException:
            self._undo(before)
            raise
        if self._spoiled.computed(batch, not_numbers(logits)) and self._padded:
            self._spoiled.stale = True  # the padding of other sequences may be none either
        return logits

    def _undo(self, before: Mapping[int, int]) -> None:
        """A forward failed half way: no features are left of it, and its sequences are as long as before, as
        far as they can be cut.
        """
        self._mixed, self._laid = None, []
        for seq, length in before.items():
            with suppress(BackendError):
                self._withdraw(seq, length)

    def _switch(self, adapter: str = "") -> None:
        """Compute with this adapter from now on."""
        if adapter != self._adapters.current and not self._adapters.exchanged:
            self._graphs.close()  # llama.cpp might take one of another adapter's for its own
        self._adapters.use(adapter)

    def _forward_mixed(self, context: Any, batch: Sequence[Rows], adapters: Sequence[str]) -> Logits:
        """A pass for each adapter."""
        logits = np.empty((sum(rows.logits for rows in batch), self.info.vocab_size), np.float32)
        counts = [len(rows.tokens) for rows in batch]
        features: Features | None = None
        for adapter in adapters:
            chosen = [i for i, rows in enumerate(batch) if self._adapted[rows.seq] == adapter]
            self._switch(adapter)
            found = self._forward_alike(context, [batch[i] for i in chosen])
            logits[rows_of(chosen, [rows.logits for rows in batch])] = found
            if self._watched is not None:
                its = self.features()
                if features is None:
                    features = np.empty((sum(counts), its.shape[1]), np.float32)
                features[rows_of(chosen, counts)] = its
        self._mixed = features
        return logits

    def _forward_alike(self, context: Any, batch: Sequence[Rows]) -> Logits:
        """A forward of rows that are computed with the adapter in use."""
        self._mixed = None
        if any(rows.images for rows in batch):
            return self._forward_in_pieces(context, batch)
        # In ascending order drafts of different lengths are split into passes, which left wrong recurrent
        # states (qwen35); in descending order each sequence is a pass of its own.
        apart = self._recurrent and len({len(rows.tokens) for rows in batch}) > 1
        stream = self._streams.of
        self._asked, self._laid = [(rows.seq, len(rows.tokens)) for rows in batch], []
        order = sorted(range(len(batch)), key=lambda i: stream[batch[i].seq], reverse=apart)
        self._decode(context, [batch[i] for i in order])
        for rows in batch:
            self._lengths[rows.seq] += len(rows.tokens)
            # Not the first row: the state before it was overwritten.
            self._spare[rows.seq] = min(self.capabilities.rollback_bound, len(rows.tokens) - 1)
        logits = self._logits(sum(rows.logits for rows in batch))
        return logits if order == list(range(len(batch))) else logits[places_of_rows(batch, order)]

    def _forward_in_pieces(self, context: Any, batch: Sequence[Rows]) -> Logits:
        """A forward with images: they and the text before them first, then the other rows together."""
        chunk = self._vision.chunk if self._vision is not None else 0
        found: dict[int, Logits] = {}
        states: dict[int, list[Features]] = {rows.seq: [] for rows in batch}
        first, rest = divided(batch, chunk)
        for piece in first:
            self._compute_piece(context, piece)
            if piece.logits:
                found[piece.seq] = self._logits(piece.logits).copy()
            if self._watched:
                states[piece.seq].append(self._watched.rows(context, range(len(piece.tokens))).copy())
        logits = self._forward_alike(context, rest) if rest else self._logits(0)
        self._collect(batch, rest, states)
        return in_order(batch, rest, found, logits) if found else logits

    def _collect(
        self, batch: Sequence[Rows], rest: Sequence[Rows], states: dict[int, list[Features]]
    ) -> None:
        """Put together the features of a forward that was computed in pieces."""
        if not self._watched:
            return
        first = 0
        for piece in rest:
            states[piece.seq].append(self.features(range(first, first + len(piece.tokens))).copy())
            first += len(piece.tokens)
        self._mixed = np.concatenate([part for rows in batch for part in states[rows.seq]])

    def _compute_piece(self, context: Any, piece: Rows) -> None:
        """Compute text before an image, or rows of an image."""
        count = len(piece.tokens)
        status = self._see(context, piece) if piece.images else self._compute(context, [piece])
        if status:
            self._raise(status, [piece])
        self._lengths[piece.seq] += count
        self._spare[piece.seq] = min(self.capabilities.rollback_bound, count - 1)

    def _see(self, context: Any, piece: Rows) -> int:
        """Compute rows of an image and return llama.cpp's status."""
        if self._vision is None:
            raise BackendError("This model does not see images.")
        self._graphs.use(None, self._batch.capacity + MOST_ROWS)
        try:
            stream = self._streams.of[piece.seq]
            return compute_image(context, piece, stream, causal=self._vision.causal, places=self._places)
        except BaseException:
            # Positions do not tell an image's rows apart, and a recurrent state cannot be taken back.
            start = 0 if self._recurrent else piece.images[0].start - piece.images[0].first
            self._forget(piece.seq, start or -1)
            self._set_length(piece.seq, start)
            self._spoiled.stale = True
            raise

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
                self._padded = True
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
        recurrent state: its copy has none of the earlier states that a rollback needs. Only before a forward:
        it looks at what it moves.
        """
        if self._recurrent or not self._streams.scattered(sequences):
            return
        pairs = self._streams.exchanges(sequences, self._lengths)
        if not self._streams.pays(self._streams.cells(pairs, self._lengths) * self._cell_bytes()):
            return
        began, size = perf_counter(), 0
        for a, b in pairs:
            both = self._streams.holds(a), self._streams.holds(b)
            for seq in both:
                self._look(seq)
            saved = {seq: self.snapshot(seq) for seq in both if self._lengths[seq]}
            clean = {seq for seq in both if self._spoiled.clean(seq)}
            for seq in both:
                self._drop(seq)
            self._streams.exchange(a, b)
            for seq, cells in saved.items():
                self._fill(seq, cells, clean=seq in clean)
                size += len(cells)
        self._streams.moved(size, 1e3 * (perf_counter() - began))

    def _cell_bytes(self) -> float:
        """Bytes of a cell; 0 while there are no cells."""
        if not self._bytes_a_cell and (longest := max(self._lengths)):
            stream = self._streams.of[self._lengths.index(longest)]
            self._bytes_a_cell = sequence_state.size(self._context, stream, sequence_state.ALL) / longest
        return self._bytes_a_cell

    def _compute(self, context: Any, batch: Sequence[Rows], even: int = 0) -> int:
        """Compute a batch and return llama.cpp's status. Padding rows are removed; all rows if it is
        interrupted.
        """
        begins = None if self._places is None else [self._position(rows.seq, rows.start) for rows in batch]
        self._batch.fill(batch, self._streams.of, even, begins)
        shape = [(self._streams.of[rows.seq], len(rows.tokens), rows.logits) for rows in batch]
        self._graphs.use((self._adapters.current, even, *shape), self._batch.native.n_tokens)
        began = perf_counter()
        try:
            status = lib.llama_decode(context, self._batch.native)
        except BaseException:
            for rows in batch:
                self._interrupted(rows.seq)
            raise
        if status == 0:
            self._laid = [(rows.seq, max(len(rows.tokens), even)) for rows in batch]
        self._ms = 1e3 * (perf_counter() - began)
        for rows in batch if even else ():
            self._cut(rows.seq, self._lengths[rows.seq] + rows.logits)
        return int(status)

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
        if self._places is not None:  # behind a part of an image there is no position for text
            fits &= not any(self._places.cuts(self._streams.holds(it), held) for it, held in cells.items())
        return even if fits and even * len(among) <= self._batch.capacity else 0

    def _with_idle(self, batch: Sequence[Rows]) -> list[Rows]:
        """The rows of all streams from the first to the last, one padding row for streams without any."""
        given = {rows.seq: rows for rows in batch}
        first, last = (self._streams.of[rows.seq] for rows in (batch[0], batch[-1]))
        among = [self._streams.holds(stream) for stream in range(first, last + 1)]
        return [given.get(seq) or Rows(seq, self._lengths[seq], (batch[0].tokens[0],), 0) for seq in among]

    def _raise(self, status: int, batch: Sequence[Rows]) -> None:
        self._hosts.check()
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
        logits = self._views.of(self._context, rows)
        self._hosts.check()
        return logits

    def features(self, rows: Sequence[int] | None = None) -> Features:
        if self._watched is None:
            raise BackendError("The model was loaded without features.")
        if self._mixed is not None:
            return self._mixed if rows is None else self._mixed[list(rows)]
        if not self._laid:
            raise BackendError("There are no features: the last forward failed, or there was none.")
        places = laid_rows(self._asked, self._laid, rows)
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
        """A model on the same weights that keeps no hidden states, for `sequences` sequences. It can be
        closed before this one and after it. Raises CapacityError, BackendError.
        """
        self._still_open(self._weights)
        return self._again(sequences)

    def forget_head(self, head: NativeHead) -> None:
        """Called by a head that is closed."""
        self._heads.discard(head)

    def threads(self) -> int:
        """How many its forwards use now."""
        return self._cores.threads if self._cores else int(self.info.settings["threads"])

    def _look(self, seq: int) -> BackendError | None:
        """See by a row more whether a sequence's cells are numbers, if no logits have come of them: they are
        about to be dropped. Returns why its beginning cannot be kept: they are none, or there is no room for
        the row, and they stay unseen.

        Behind 2,048 tokens of a 135M model, which a processor reads in 5 s, this takes 20 ms of it; to
        overwrite them beside three such sequences takes 170 ms.
        """
        if not self._spoiled.unseen(seq) or not self._lengths[seq]:
            return None
        if self._watched is not None and self._laid:
            self._mixed = self.features().copy()  # they may still be asked for
        memory, stream = self._memory, self._streams.of[seq]
        begin = int(lib.llama_memory_seq_pos_max(memory, stream)) + 1
        adapter = self._adapters.current
        self._switch(self._adapted[seq])
        self._batch.fill([Rows(seq, begin, (0,), 1)], self._streams.of, begins=[begin])
        self._graphs.use(None, self._batch.capacity + MOST_ROWS)
        bad, status = True, 0
        try:
            status = lib.llama_decode(self._context, self._batch.native)
            if status == 0:
                bad = bool(not_numbers(self._logits(1))[0])
        finally:
            lib.llama_memory_seq_rm(memory, stream, begin, -1)
            self._switch(adapter)
            if status != _NO_SLOT:
                self._spoiled.looked(seq, bad=bad)
        if status == _NO_SLOT:
            return not_seen(seq)
        return not_kept(seq) if bad else None

    def close(self) -> None:
        if self._open_context is not None:
            for head in list(self._heads):
                head.target_closes()
            self._views.clear()
            self._batch.free()
            self.tokenizer.close()
            self._graphs.close()
            self._adapters.close()
            lib.llama_free(self._open_context)
            self._users.discard(self)
            if not self._users:
                if self._vision is not None:
                    self._vision.close()
                lib.llama_model_free(self._weights)
            self._open_context = self._open_memory = self._weights = None
