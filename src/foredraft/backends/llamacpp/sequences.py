"""The sequences of a llama.cpp context: their KV cells, and what is saved, cut and dropped of them.

llama.cpp keeps a few versions of a recurrent state (`n_rs_seq`), one for each of the last rows of the last
forward. A rollback to before the first of these rows, or past a row that followed a rollback, reports success
but continues from a wrong state (seen in build 11549). So `spare` counts the rows that can be
rolled back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from foredraft.backends.llamacpp import sequence_state
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.image_places import ImagePlaces
from foredraft.backends.llamacpp.rpc.library import Hosts
from foredraft.backends.llamacpp.spoiled import SpoiledCells
from foredraft.backends.llamacpp.streams import Streams
from foredraft.errors import BackendError
from foredraft.types import Capabilities, ModelInfo


class ContextSequences(ABC):
    """The part of `LlamaCppModel` that computes nothing. `hosts`: other machines that hold cells; `mrope`:
    images take fewer positions than cells.
    """

    def __init__(
        self,
        context: Any,
        info: ModelInfo,
        capabilities: Capabilities,
        hosts: Hosts,
        *,
        recurrent: bool,
        mrope: bool,
    ) -> None:
        self.info = info
        self.capabilities = capabilities
        self._recurrent = recurrent
        self._hosts = hosts
        self._open_context: Any = context
        self._open_memory: Any = lib.llama_get_memory(context)
        sequences = capabilities.sequences
        self._streams = Streams(sequences)
        self._lengths = [0] * sequences
        self._least = [0] * sequences
        """The fewest cells that each can be cut to, beside none: a restored one has those in its window."""
        self._spare = [0] * sequences
        self._spoiled = SpoiledCells()
        self._places = ImagePlaces(sequences) if mrope else None

    @abstractmethod
    def _look(self, seq: int) -> BackendError | None:
        """See whether a sequence's cells are numbers, if no logits have come of them: they are about to be
        dropped. Returns why its beginning cannot be kept, if so.
        """

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
        if self._places is not None and self._places.cuts(seq, length):
            raise BackendError(f"Sequence {seq} cannot be cut to {length} tokens: that is inside an image.")
        # Of a recurrent state another row could not be taken back.
        if not self._recurrent and (error := self._look(seq)):
            raise error
        self._cut(seq, length)
        self._set_length(seq, length)
        self._spare[seq] = 0
        self._spoiled.dropped(seq, length)

    def _set_length(self, seq: int, length: int) -> None:
        self._lengths[seq] = length
        if self._places is not None:
            self._places.cut(seq, length)

    def _interrupted(self, seq: int) -> None:
        """Drop the rows that an interrupted call has computed. A recurrent state has gone on with them, also
        where llama.cpp reports that they were dropped; so there they count.
        """
        self._spoiled.stale = True  # nothing is known of what was dropped
        if self._recurrent:
            self._spare[seq] = 0
            self._lengths[seq] = self._held(seq)
        else:
            self._forget(seq, self._lengths[seq])

    def _withdraw(self, seq: int, length: int) -> None:
        """Drop what a forward that failed half way left beyond `length`, without looking: it is overwritten
        before the next one. An image goes whole. Raises BackendError where it cannot be dropped.
        """
        held = self._lengths[seq]
        if held <= length:
            return
        self._spoiled.stale = True  # nothing is known of what is dropped
        if self._places is not None:
            length = self._places.before_cut(seq, length)
        if length == 0:
            self._drop(seq)
            return
        if self._recurrent and held - length > self._spare[seq]:
            self._spoiled.filled(seq, clean=False)
            raise BackendError(f"Sequence {seq} keeps what is left of a forward: it has a recurrent state.")
        self._cut(seq, length)
        self._set_length(seq, length)
        self._spare[seq] = 0
        self._spoiled.dropped(seq, length)

    def spare(self, seq: int) -> int:
        return self._spare[seq] if self._recurrent else self._lengths[seq]

    def reachable(self, seq: int, length: int) -> int:
        held = self._lengths[seq]
        reached = min(length, held)
        possible = reached >= self._least[seq] and (not self._recurrent or length >= held)
        return reached if possible else 0

    def checkpoint(self, seq: int, instead_of: object = None) -> object:
        """The recurrent state alone: a few megabytes, whatever the sequence's length."""
        return self._save(seq, sequence_state.RECURRENT, cast("bytearray | None", instead_of))

    def _save(self, seq: int, part: int, instead_of: bytearray | None = None) -> bytearray:
        saved = sequence_state.save(self._context, self._streams.of[seq], part, instead_of)
        self._hosts.check()
        return saved

    def rewind(self, seq: int, checkpoint: object, length: int) -> None:
        # The state first: only then llama.cpp allows the attention layers to be cut to its position.
        self._load(seq, cast("bytearray", checkpoint), sequence_state.RECURRENT)
        if not self._forget(seq, length):
            self.release(seq)
            raise BackendError(f"llama.cpp could not cut sequence {seq} to {length} tokens.")
        self._set_length(seq, length)

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
            if not self._recurrent and (error := self._look(src)):
                raise error
            cells, clean = self.snapshot(src), self._spoiled.clean(src)
            self.release(dst)
            self._fill(dst, cells, clean=clean)
        self.truncate(dst, length)

    def snapshot(self, seq: int) -> bytearray:
        saved = self._save(seq, sequence_state.ALL)
        if self._places is not None:
            saved += self._places.written(seq, self._lengths[seq])
        return saved

    def restore(self, seq: int, snapshot: object) -> None:
        self.release(seq)
        self._fill(seq, snapshot, clean=False)

    def _fill(self, seq: int, snapshot: object, *, clean: bool) -> None:
        """Put cells into an empty sequence; `clean`: all of them are numbers."""
        saved = cast("bytearray", snapshot)
        size, held = (len(saved), 0) if self._places is None else self._places.read(seq, saved)
        self._load(seq, saved, sequence_state.ALL, size)
        self._lengths[seq] = length = held or self._lengths[seq]
        self._least[seq] = 0 if self.capabilities.copy_reaches(length, 0) or self._recurrent else length - 1
        self._spoiled.filled(seq, clean=clean)

    def _load(self, seq: int, saved: bytearray, part: int, size: int | None = None) -> None:
        if not sequence_state.load(self._context, self._streams.of[seq], part, saved, size):
            self.release(seq)
            raise BackendError("llama.cpp could not restore a snapshot.")
        self._lengths[seq] = self._held(seq)
        self._spare[seq] = 0

    def _held(self, seq: int) -> int:
        """The number of a sequence's cells, as counted by llama.cpp."""
        positions = int(lib.llama_memory_seq_pos_max(self._memory, self._streams.of[seq])) + 1
        return positions if self._places is None else self._places.cells(seq, positions)

    def release(self, seq: int) -> None:
        with suppress(BackendError):  # an RPC host was lost, say: then it counts as bad
            self._look(seq)
        self._drop(seq)

    def _drop(self, seq: int) -> None:
        self._forget(seq, -1)
        self._set_length(seq, 0)
        self._spare[seq] = self._least[seq] = 0
        self._spoiled.dropped(seq, 0)

    def _position(self, seq: int, cells: int) -> int:
        return cells if self._places is None else self._places.position(seq, cells)

    def _cut(self, seq: int, length: int) -> None:
        """Call `_forget`. Raises BackendError if llama.cpp fails."""
        if not self._forget(seq, length):
            raise BackendError(f"llama.cpp could not cut sequence {seq} to {length} tokens.")

    def _forget(self, seq: int, length: int) -> bool:
        """Drop a sequence's cells beyond `length`, -1 for all; returns whether llama.cpp succeeded."""
        at = self._position(seq, length) if length > 0 else length
        return bool(lib.llama_memory_seq_rm(self._memory, self._streams.of[seq], at, -1))

    def _wipe(self) -> None:
        """Overwrite what was dropped and is not numbers. Not while a draft's rows may have to be dropped: a
        sequence that was copied cannot be rolled back.
        """
        if self._spoiled.stale:
            used = [seq for seq in range(self.capabilities.sequences) if self._lengths[seq]]
            clean = {seq for seq in used if self._spoiled.clean(seq)}
            self._spoiled.wipe(
                self._memory,
                used,
                self.snapshot,
                lambda seq, cells: self._fill(seq, cells, clean=seq in clean),
                self._drop,
            )
