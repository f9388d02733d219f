"""Where the cells of a sequence are in its text: with M-RoPE an image takes fewer positions than cells.

llama.cpp counts positions, everything else counts cells (rows).
"""

from __future__ import annotations

import numpy as np


class ImagePlaces:
    """The images of each sequence: (first cell, cells, positions), in order."""

    def __init__(self, sequences: int) -> None:
        self._images: list[list[tuple[int, int, int]]] = [[] for _ in range(sequences)]

    def add(self, seq: int, start: int, cells: int, positions: int) -> None:
        """An image begins at cell `start`."""
        if not self._images[seq] or self._images[seq][-1][0] < start:
            self._images[seq].append((start, cells, positions))

    def position(self, seq: int, cells: int) -> int:
        """The position after the first `cells` cells; inside an image that of its beginning."""
        saved = 0
        for start, count, positions in self._images[seq]:
            if cells <= start:
                break
            if cells < start + count:
                return start - saved
            saved += count - positions
        return cells - saved

    def cells(self, seq: int, position: int) -> int:
        """How many cells there are before a position; of an image all or none."""
        saved = 0
        for start, count, positions in self._images[seq]:
            begin = start - saved
            if position <= begin:
                break
            if position <= begin + positions:
                return start + count
            saved += count - positions
        return position + saved

    def cuts(self, seq: int, cells: int) -> bool:
        """Whether the first `cells` cells end inside an image."""
        return any(start < cells < start + count for start, count, _ in self._images[seq])

    def before_cut(self, seq: int, cells: int) -> int:
        """The first `cells` cells, less those of an image of which they are a part."""
        inside = (start for start, count, _ in self._images[seq] if start < cells < start + count)
        return next(inside, cells)

    def cut(self, seq: int, cells: int) -> None:
        """The sequence has only its first `cells` cells."""
        self._images[seq] = [image for image in self._images[seq] if image[0] < cells]

    def written(self, seq: int, cells: int) -> bytes:
        """A sequence's images, and how many cells it has, for `read`: at the end of a snapshot."""
        images = self._images[seq]
        numbers = [*(number for image in images for number in image), cells, len(images)]
        return np.array(numbers, "<i4").tobytes()

    def read(self, seq: int, saved: bytearray) -> tuple[int, int]:
        """Take over what `written` put at the end of a snapshot; returns the bytes before it, and the
        sequence's cells: positions do not tell how many of an image there are.
        """
        held, count = np.frombuffer(saved, "<i4", 2, len(saved) - 8).tolist()
        size = 4 * (3 * count + 2)
        numbers = np.frombuffer(saved, "<i4", 3 * count, len(saved) - size).reshape(count, 3).tolist()
        self._images[seq] = [(start, cells, positions) for start, cells, positions in numbers]
        return len(saved) - size, held
