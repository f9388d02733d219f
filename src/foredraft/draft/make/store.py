"""What a head is trained on, in memory-mapped files: rows of the target's hidden states and its choices.

For each answer the rows of its last prompt token and of its own tokens, side by side with those of other
answers: `features.f16` (hidden states in half precision, which is 2 bytes × 3 × width a row, nearly all of
the space), `tokens.i32` (each row's own token), `likely.i32` and `scores.f16` (the target's `TOP` likeliest
next tokens and their log-probabilities). `rows.jsonl` has a line for each answer, written last: what other
files have beyond it is cut off when the store is opened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from foredraft.draft.make.parts import Part, Prompt, parts_of
from foredraft.draft.make.sizes import STEPS
from foredraft.types import Features

TOP = 8
"""The target's next tokens that are kept of each row."""

_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True)
class Labelled:
    """The rows of one answer: (n, 3 × width), (n,), (n, TOP), (n, TOP)."""

    features: Features
    tokens: npt.NDArray[np.int32]
    likely: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]


class RowStore:
    """`width`: numbers of a row's features. `counts[n]` is the number of rows of answer n, 0 of one that was
    left out; `greedy[n]` whether the answer was.
    """

    def __init__(self, folder: Path, width: int) -> None:
        """Opens what is there. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # tokens are text
        self.width = width
        self.counts: list[int] = []
        self.greedy: list[bool] = []
        self._index = folder / "rows.jsonl"
        self._files: dict[str, tuple[Path, Any, int]] = {
            "features": (folder / "features.f16", np.float16, width),
            "tokens": (folder / "tokens.i32", np.int32, 1),
            "likely": (folder / "likely.i32", np.int32, TOP),
            "scores": (folder / "scores.f16", np.float16, TOP),
        }
        self._reopen()

    @staticmethod
    def row_bytes(width: int) -> int:
        """Bytes on disk of a row."""
        return 2 * width + 4 + TOP * 6

    def _reopen(self) -> None:
        content = self._index.read_bytes() if self._index.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        for line in whole.splitlines():
            row = json.loads(line)
            self._note(row["rows"], row["greedy"])
        if len(whole) < len(content):
            _cut(self._index, len(whole))
        for path, kind, columns in self._files.values():
            size = self.rows * columns * np.dtype(kind).itemsize
            if not path.exists():
                path.touch()
            if path.stat().st_size > size:
                _cut(path, size)

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def _note(self, rows: int, greedy: bool) -> None:
        self.counts.append(rows)
        self.greedy.append(greedy)

    def add(self, rows: Labelled | None, *, greedy: bool) -> None:
        """Add the rows of the next answer; None: it is left out. Raises OSError."""
        if rows is not None:
            values = (rows.features.clip(-_LARGEST, _LARGEST), rows.tokens, rows.likely, rows.scores)
            for (path, kind, _), array in zip(self._files.values(), values, strict=True):
                with path.open("ab") as file:
                    file.write(np.ascontiguousarray(array, kind).tobytes())
        count = 0 if rows is None else len(rows.tokens)
        with self._index.open("a") as file:
            file.write(json.dumps({"rows": count, "greedy": greedy}) + "\n")
        self._note(count, greedy)

    def parts(self, prompts: Sequence[Prompt]) -> list[Part]:
        """What each answer is for; `prompts[n]` is that of answer n, of which later ones may have no rows."""
        usable = {prompt for prompt, count in zip(prompts, self.counts, strict=False) if count > STEPS}
        return parts_of(prompts, usable)

    def read(self, parts: Sequence[Part]) -> Examples:
        """All rows as they are now, mapped into memory; `parts[n]`: what answer n is for. Raises OSError."""
        arrays = {
            name: np.memmap(path, kind, "r", shape=(self.rows, columns))
            if self.rows
            else np.empty((0, columns), kind)
            for name, (path, kind, columns) in self._files.items()
        }
        counts = np.asarray(self.counts, np.int64)
        ends = np.repeat(np.cumsum(counts), counts)
        return Examples(
            arrays["features"],
            np.asarray(arrays["tokens"]).ravel(),
            np.asarray(arrays["likely"]),
            np.asarray(arrays["scores"]),
            ends - np.arange(len(ends)) - 1,
            np.repeat(np.asarray(parts[: len(counts)], np.int8), counts),
            np.repeat(np.asarray(self.greedy, bool), counts),
        )


@dataclass(frozen=True)
class Examples:
    """The rows of all answers. `left[i]`: how many rows of the same answer follow row i; `parts[i]`: what
    that answer is for.
    """

    features: npt.NDArray[np.float16]
    tokens: npt.NDArray[np.int32]
    likely: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float16]
    left: npt.NDArray[np.int64]
    parts: npt.NDArray[np.int8]
    greedy: npt.NDArray[np.bool_]

    @cached_property
    def training(self) -> npt.NDArray[np.int64]:
        """Rows that a draft can begin at, of answers to learn from."""
        return np.flatnonzero((self.left > 0) & (self.parts == Part.LEARNING))

    @cached_property
    def choosing(self) -> npt.NDArray[np.int64]:
        """Rows to choose the best head on."""
        return self._measuring(Part.CHOOSING)

    @cached_property
    def final(self) -> npt.NDArray[np.int64]:
        """Rows that the chosen head is measured on."""
        return self._measuring(Part.FINAL)

    def _measuring(self, part: Part) -> npt.NDArray[np.int64]:
        """Where whole drafts fit, in answers for this: in greedy ones, where the target's choices are the
        text, if there are enough.
        """
        every = (self.left >= STEPS) & (self.parts == part)
        greedy = every & self.greedy
        return np.flatnonzero(greedy if 4 * greedy.sum() >= every.sum() else every)

    def scale(self, rows: int = 4096) -> npt.NDArray[np.float32]:
        """The usual size of each feature, of rows that are normalised as a whole, shape (3 × width,)."""
        chosen = np.linspace(0, len(self.tokens) - 1, min(rows, len(self.tokens))).astype(np.int64)
        values = self.features[chosen].astype(np.float32)
        values /= np.sqrt(np.square(values).mean(1, keepdims=True) + 1e-5)
        usual: npt.NDArray[np.float32] = np.maximum(np.sqrt(np.square(values).mean(0)), 1e-3)
        return usual


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
