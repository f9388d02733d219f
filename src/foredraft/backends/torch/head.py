"""A head over a network of one layer: which rows each sequence holds, and forwards of all sequences' rows.

Cells hold the rows with the target's features, then the rows of a tree that goes on from the last of them.
A chain is a tree without branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch

from foredraft.backends.torch.head_cells import HeadCells, HeadSegment
from foredraft.errors import BackendError, CapacityError, OutOfKVError, first_line
from foredraft.types import HeadRows, Logits, ModelInfo


class Network(Protocol):
    """The layer of a head, with what is before and after it. `window` as in `protocols.Head`."""

    window: int

    def fuse(self, features: Any) -> Any:
        """The target's features, shape (rows, needs × size), as hidden states of the head, (rows, size)."""
        ...

    def __call__(self, tokens: Any, hidden: Any, positions: Any, wanted: Any) -> tuple[Any, Any]:
        """From a row's token and its parent's hidden state: the row's own, shape (rows, size), and the logits
        of the rows `wanted`.
        """
        ...

    def close(self) -> None:
        """Free the weights."""
        ...


class Layer(NamedTuple):
    """A network, and its cells."""

    network: Network
    cells: HeadCells

    def run(
        self,
        segments: Sequence[HeadSegment],
        tokens: Sequence[int],
        hidden: Any,
        places: Sequence[int],
        wanted: Sequence[int],
    ) -> tuple[Any, Any]:
        """The hidden states of all rows, and the logits of those `wanted`."""
        self.cells.begin(segments)
        numbers = (
            torch.tensor(each, dtype=torch.long, device=hidden.device) for each in (tokens, places, wanted)
        )
        ids, positions, asked = numbers
        return self.network(ids, hidden, positions, asked)

    def close(self) -> None:
        """Free both."""
        self.network.close()
        self.cells.close()


@dataclass(frozen=True, slots=True)
class Shape:
    """What a head has to know of its target: how many numbers of it a row reads, the size of the vocabulary,
    the context, and the format and device it computes in.

    `tokens`: the target's tokens that the logits belong to; None if they are all.
    """

    features: int
    vocab_size: int
    context_length: int
    dtype: Any
    device: Any
    tokens: Any = None


@dataclass(slots=True)
class _Tree:
    """The rows since the last one with features: `parents` as in HeadRows, and their hidden `states`. Of a
    head of several layers also their `tokens`, and how many of the rows the cells of each layer hold.
    """

    parents: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Held:
    """A sequence's rows: positions `base` … `end - 1` with features, and a tree after them. `state`: the
    hidden state of the last row with features, if rows may go on from it.
    """

    base: int = 0
    end: int = 0
    state: Any = None
    tree: _Tree = field(default_factory=_Tree)

    @property
    def cells(self) -> int:
        """Its cells without the tree's."""
        return self.end - self.base


class TorchHead:
    """See `protocols.Head`. It computes with the number of threads that torch had when it was created."""

    trees = True
    block = 0

    def __init__(
        self,
        layer: Layer,
        info: ModelInfo,
        *,
        needs: tuple[str, ...],
        sequences: int,
        shape: Shape,
    ) -> None:
        self.info, self.needs, self.sequences = info, needs, sequences
        self.window = layer.network.window
        self._layer, self._shape = layer, shape
        self._held = [Held() for _ in range(sequences)]
        self._logits = torch.full((1, shape.vocab_size), float("-inf"))
        self._threads = torch.get_num_threads()
        self._closed = False

    def forward(self, batch: Sequence[HeadRows]) -> Logits:
        self._check_open()
        self._check(batch)
        if not batch:
            return np.empty((0, self._shape.vocab_size), np.float32)
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                return self._compute(batch)
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"The device has too little memory for a head's forward ({first_line(error)}).",
                hint="Use a smaller context (--ctx), or no head.",
            ) from None
        except (RuntimeError, IndexError) as error:
            raise BackendError(f"torch failed to compute a head's forward: {error}") from error

    # --- what may be computed --------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError(f"The head {self.info.name} is closed.", hint="Load it again.")

    def _check(self, batch: Sequence[HeadRows]) -> None:
        if len({rows.seq for rows in batch}) < len(batch):
            raise BackendError("A sequence has rows twice in one forward of a head.")
        for rows in batch:
            if not 0 <= rows.seq < self.sequences:
                raise BackendError(f"The head has no sequence {rows.seq}; there are {self.sequences}.")
            if not rows.tokens or not 0 <= rows.logits <= len(rows.tokens):
                raise BackendError(f"{rows.logits} of {len(rows.tokens)} rows cannot return logits.")
            if not all(0 <= token < self._shape.vocab_size for token in rows.tokens):
                raise BackendError("A token is not in the vocabulary.")
            (self._check_own if rows.features is None else self._check_given)(rows)
            last = max(self._positions(rows))
            if last >= self._shape.context_length:
                raise OutOfKVError(
                    f"Row {last} of sequence {rows.seq} is after the head's context of "
                    f"{self._shape.context_length} tokens.",
                    hint="Use a larger context (--ctx) if the model supports it.",
                )

    def _check_given(self, rows: HeadRows) -> None:
        held, shape = self._held[rows.seq], (len(rows.tokens), self._shape.features)
        if rows.parents is not None or rows.start < 1:
            raise BackendError("Rows with features are a chain that starts at position 1 or after it.")
        if rows.features is None or rows.features.shape != shape:
            raise BackendError(f"Features of shape {shape} are needed, one row for each token.")
        if held.cells and self.window != 1 and rows.start != held.end:
            raise BackendError(
                f"Rows of sequence {rows.seq} start at {rows.start}; the head's end at {held.end}."
            )

    def _check_own(self, rows: HeadRows) -> None:
        held = self._held[rows.seq]
        if held.state is None:
            raise BackendError("The head has no hidden state to go on from.")
        parents, known = self._parents(rows), len(held.tree.parents)
        if len(parents) != len(rows.tokens):
            raise BackendError("Each row has a parent; without any there is one row.")
        if not all(-1 <= parent < known for parent in parents):
            raise BackendError(f"A parent of {list(parents)} is not among the {known} rows of the tree.")
        first = min(self._positions(rows))
        if rows.start > first or (rows.parents is None and rows.start != first):
            raise BackendError(
                f"Rows of sequence {rows.seq} start at {rows.start}, their parents before {first}."
            )

    def _parents(self, rows: HeadRows) -> Sequence[int]:
        known = len(self._held[rows.seq].tree.parents)
        return [known - 1] if rows.parents is None else rows.parents

    def _positions(self, rows: HeadRows) -> list[int]:
        if rows.features is not None:
            return list(range(rows.start, rows.start + len(rows.tokens)))
        held = self._held[rows.seq]
        return [
            (held.tree.positions[parent] if parent >= 0 else held.end - 1) + 1
            for parent in self._parents(rows)
        ]

    # --- a forward -------------------------------------------------------------------------------------

    def _compute(self, batch: Sequence[HeadRows]) -> Logits:
        positions = [self._positions(rows) for rows in batch]
        segments: list[HeadSegment] = []
        wanted: list[int] = []
        first = 0
        for rows, part in zip(batch, positions, strict=True):
            segments.append(self._segment(rows, part, first))
            first += len(part)
            wanted.extend(range(first - rows.logits, first))
        tokens = [token for rows in batch for token in rows.tokens]
        places = [place for part in positions for place in part]
        states, logits = self._layer.run(segments, tokens, self._hidden(batch), places, wanted)
        found = self._in_vocabulary(logits.float().cpu())
        for rows, part, segment in zip(batch, positions, segments, strict=True):
            self._record(rows, part, states[segment.first : segment.first + segment.count])
        return found

    def _hidden(self, batch: Sequence[HeadRows]) -> Any:
        """The hidden states that the rows go on from, shape (rows, size)."""
        given = [rows.features for rows in batch if rows.features is not None]
        fused: Any = ()
        if given:
            features = torch.from_numpy(np.concatenate(given))
            fused = self._layer.network.fuse(features.to(self._shape.device, self._shape.dtype))
            if len(given) == len(batch):
                return fused
        parts, first = [], 0
        for rows in batch:
            if rows.features is None:
                held = self._held[rows.seq]
                parts += [
                    held.tree.states[parent] if parent >= 0 else held.state for parent in self._parents(rows)
                ]
            else:
                parts += [*fused[first : first + len(rows.tokens)]]
                first += len(rows.tokens)
        return parts[0][None] if len(parts) == 1 else torch.stack(parts)

    def _segment(self, rows: HeadRows, positions: list[int], first: int) -> HeadSegment:
        held, count = self._held[rows.seq], len(positions)
        if rows.features is not None:
            cell = held.cells if rows.start == held.end else 0
            base = rows.start - cell
            sees = self._chain(range(base, base + cell + count), count)
            return HeadSegment(rows.seq, first, count, cell, sees)
        known = len(held.tree.parents)
        parents = [*held.tree.parents, *self._parents(rows)]
        sees = self._family(held, parents, [*held.tree.positions, *positions], known)
        return HeadSegment(rows.seq, first, count, held.cells + known, sees)

    def _chain(self, positions: range, count: int) -> Any:
        """Which cells the last `count` of these positions see, up to their own; None if all."""
        total = len(positions)
        if count == 1 and not 0 < self.window < total:
            return None
        cell = torch.arange(total, device=self._shape.device)
        row = cell[total - count :, None]
        sees = cell <= row
        return sees & (cell > row - self.window) if self.window else sees

    def _family(self, held: Held, parents: Sequence[int], positions: Sequence[int], known: int) -> Any:
        """The same for the rows of a tree from row `known` on, with these parents and positions of all its
        rows; they see their ancestors.
        """
        count, total = len(parents) - known, held.cells + len(parents)
        chain = count == 1 and list(parents) == list(range(-1, len(parents) - 1))
        if chain and not 0 < self.window < total:
            return None
        sees = torch.zeros(count, total, dtype=torch.bool)
        sees[:, : held.cells] = True
        for index in range(count):
            row = known + index
            while row >= 0:
                sees[index, held.cells + row] = True
                row = parents[row]
        if self.window:
            standing = torch.tensor([*range(held.base, held.end), *positions])
            sees &= standing > torch.tensor(positions[known:])[:, None] - self.window
        return sees.to(self._shape.device)

    def _record(self, rows: HeadRows, positions: list[int], states: Any) -> None:
        held = self._held[rows.seq]
        if rows.features is None:
            held.tree.parents += self._parents(rows)
            held.tree.positions += positions
            held.tree.tokens += rows.tokens
            held.tree.states += [*states]
            return
        if rows.start != held.end or not held.cells:
            held.base = rows.start
        held.end, held.tree = positions[-1] + 1, _Tree()
        # A copy, as the states of a prompt's other rows would stay with it.
        held.state = states[-1].clone() if rows.logits else None

    def _in_vocabulary(self, logits: Any) -> Logits:
        tokens = self._shape.tokens
        if tokens is None:
            return cast("Logits", logits.numpy())
        if len(self._logits) < len(logits):
            self._logits = torch.full((len(logits), self._shape.vocab_size), float("-inf"))
        found = self._logits[: len(logits)]
        found[:, tokens] = logits
        return cast("Logits", found.numpy())

    # --- what is held ----------------------------------------------------------------------------------

    def length(self, seq: int) -> int:
        held = self._held[seq]
        return max([held.end if held.cells else 0, *(position + 1 for position in held.tree.positions)])

    def truncate(self, seq: int, length: int) -> None:
        self._check_open()
        held = self._held[seq]
        held.state, held.tree = None, _Tree()
        held.end = min(held.end, length)
        if held.end <= held.base:
            self._held[seq] = Held()

    def release(self, seq: int) -> None:
        self._check_open()
        self._held[seq] = Held()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._held = [Held() for _ in self._held]
            self._layer.close()
