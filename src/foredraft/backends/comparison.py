"""Compares the logits of single rows with those of the same rows in larger forwards, bit for bit.

A comparison is a passage at a depth of the context: its rows are computed one by one, which is the reference,
and then in forwards of 2, 3, 4, 8 and 16 rows, of which each goes on from the cells that the one before has
written, as accepted drafts do. Of larger forwards the first rows and the last ones are compared, in a
thorough comparison every row. The reference for the last rows goes on from cells that forwards of up to 16
rows have written, so that other cells anywhere in a large forward show in its last rows.

What is to be compared is in order of what it can find. The first of it is always compared, the rest until the
time is used up.

The cells before the rows matter for their number and positions, not for their content: a backend that can
`lengthen` a sequence without computing it makes depths cheap. Of a model that sees, text behind the rows of
an image is compared as well: with M-RoPE these have other positions, and take fewer of them than cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from foredraft.backends.differences import Difference, Result
from foredraft.backends.passages import Passage, behind, passages
from foredraft.errors import BackendError
from foredraft.images import ImageSpan, PreparedImage, spans_within
from foredraft.protocols import Model
from foredraft.types import Logits, Rollback, Rows

REFERENCE_ROWS = 17
"""The first rows of a passage at a depth, each computed alone."""

_LAST_ROWS = 2
"""The last rows of a larger forward that are compared as well."""

_CELL_ROWS = 16
"""Rows of the forwards that write the cells before them."""

DEPTHS = (8, 250, 506)
"""Near the start, and where a forward's rows lie on both sides of 256 and of 512 cells: llama.cpp computes
cells in blocks of 256 and splits them from 512 on.
"""

FAR_DEPTHS = (1100, 2040)
"""Compared as well where there is time."""

PAST_WINDOW = 24
"""Tokens beyond a sliding window. Where `DEPTHS` lie beyond it, no further depth is needed."""

LARGE = (33, 63, 129)
"""Rows of large forwards: both sides of the steps of matrix kernels, and a tiled one (≥ 64)."""

MOST_ROWS = max(LARGE)

_WALKS = ((2, 3, 4, 8), (16, 1))
_FEWER_WALKS = ((2, 3, 4), (8, 1), (16,))
"""Forwards one after the other, in rows; of a slow model with fewer reference rows."""

_MORE_WALKS = ((5, 12), (6, 11), (17,), (7, 10), (13, 4), (14, 3))
_TOGETHER = ((1, 1, 1, 1), (4, 4, 4, 4), (3, 4, 1, 2))
"""Rows of each sequence of forwards over several, one after the other."""

MOST_SEQUENCES = 4

_SLOW_S = 0.03
"""Seconds of a plain forward from which on there are fewer reference rows."""

_FEWER_ROWS = 9
_FORWARDS, _MOST_S = 80, 10.0
"""Time limit for slow models: a number of plain forwards, and a number of seconds that bounds it."""

_READING_S = 30.0
"""Seconds that the tokens before a depth may take to compute."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is compared: for about `seconds`, or `thorough`ly: every passage at every depth over its own
    tokens, and every number of rows.
    """

    seconds: float
    thorough: bool = False


QUICK = Effort(0.8)
THOROUGH = Effort(600.0, thorough=True)


@dataclass(frozen=True, slots=True)
class _Step:
    """A comparison: rows of a passage at a depth, in forwards of these numbers of rows. `needed`: whatever
    time it takes, if the cells before it can be had in `reading_s` seconds. At least the first `rows` rows
    are compared.
    """

    passage: Passage
    depth: int
    walks: tuple[tuple[int, ...], ...]
    needed: bool = False
    reading_s: float = 0.0
    rows: int = 0


_Reference = dict[int, Logits]
"""Logits of rows computed alone, shape (vocabulary,), by their number from the depth on."""


def compared_depths(model: Model, window: int = 0) -> list[int]:
    """The depths of a quick comparison, as far as the context goes. `window`: tokens of a sliding window, or
    0.
    """
    past = (window + PAST_WINDOW,) if window + PAST_WINDOW > max(DEPTHS) else ()
    return _within(model, (*DEPTHS, *past))


def _within(model: Model, depths: Sequence[int]) -> list[int]:
    deepest = model.info.context_length - REFERENCE_ROWS
    return sorted({min(depth, deepest) for depth in depths}) if deepest >= 0 else []


Lengthen = Callable[[object, int], object | None]
"""From a snapshot and a length: a snapshot with `length` cells, its first ones repeated; None where that is
not possible.
"""


class _Context:
    """Sequence 0, which holds the cells of one passage up to any depth. Rows of other passages follow them.

    At a depth it is always what was saved there: restoring may lay out the cells of a sliding window in
    another way than computing them.
    """

    def __init__(
        self,
        model: Model,
        passage: Passage,
        lengthen: Lengthen | None,
        costs: _Costs,
        images: Sequence[ImageSpan] = (),
    ) -> None:
        self._model = model
        self._images = images
        self._passage = passage
        self._lengthen = lengthen
        self._costs = costs
        self._saved: dict[int, object] = {}
        self._short: object = None
        self._at: int | None = None
        model.release(0)

    def go(self, depth: int) -> None:
        """Make sequence 0 end at a depth that was reached before."""
        model = self._model
        cuts = model.capabilities.rollback is Rollback.TRUNCATE
        if depth == 0:
            model.release(0)
        elif depth == self._at and (cuts or model.length(0) == depth):
            model.truncate(0, depth)
        else:
            model.restore(0, self._saved[depth])
        self._at = depth

    def reach(self, depth: int, seconds: float) -> bool:
        """Go to the depth, by repeating cells, or by computing the tokens before it if that takes no longer
        than `seconds`; returns whether it is there.
        """
        if depth == 0 or depth in self._saved or self._repeat(depth):
            self.go(depth)
            return True
        start = max((reached for reached in self._saved if reached < depth), default=0)
        if (depth - start) * self._costs.row_s > seconds:
            return False
        self.go(start)
        most = self._model.capabilities.max_batch
        for first in range(start, depth, most):
            tokens = self._passage.rows(first, min(most, depth - first))
            images = spans_within(self._images, first, first + len(tokens))
            self._costs.forward([Rows(0, first, tokens, 0, images=images)])
        self._saved[depth] = self._model.snapshot(0)
        self._at = None
        self.go(depth)
        return True

    def _repeat(self, depth: int) -> bool:
        if self._lengthen is None or not self._saved:
            return False
        if self._short is None:
            self._short = self._model.snapshot(0)
        longer = self._lengthen(self._short, depth)
        try:
            if longer is not None:
                self._model.restore(0, longer)
        except BackendError:
            longer, self._at = None, None  # the sequence is empty now
        if longer is None:
            self._lengthen = None
            return False
        self._saved[depth], self._at = longer, depth
        return True

    def saved(self, depth: int) -> object:
        """The snapshot of a depth that was reached."""
        return self._saved[depth]

    def forget(self) -> None:
        """Sequence 0 was used for something else."""
        self._at = None


class _Costs:
    """Computes forwards, and remembers what they take."""

    def __init__(self, model: Model, clock: Callable[[], float]) -> None:
        self._model = model
        self._clock = clock
        self._seconds: dict[int, float] = {}

    def forward(self, batch: Sequence[Rows]) -> Logits:
        began = self._clock()
        logits = np.ascontiguousarray(self._model.forward(batch), np.float32)
        self._seconds[sum(len(rows.tokens) for rows in batch)] = self._clock() - began
        return logits

    def expected_s(self, rows: int) -> float:
        """Seconds of a forward of `rows` rows."""
        known = max((size for size in self._seconds if size <= rows), default=0)
        return self._seconds[known] * rows / known if known else 0.0

    @property
    def row_s(self) -> float:
        """Seconds of a row among many."""
        return min((seconds / size for size, seconds in self._seconds.items()), default=0.0)


class _Comparison:
    """One run over a model. Its sequences are empty before and afterwards."""

    def __init__(
        self,
        model: Model,
        *,
        enough: int,
        effort: Effort,
        window: int,
        lengthen: Lengthen | None,
        clock: Callable[[], float],
        progress: Callable[[str], None] | None,
        image: PreparedImage | None,
    ) -> None:
        self._model = model
        self._image = image
        self._enough = enough
        self._effort = effort
        self._window = window
        self._lengthen = None if effort.thorough else lengthen
        self._clock = clock
        self._progress = progress
        self._costs = _Costs(model, clock)
        self._passages = passages(model)
        self._rows = REFERENCE_ROWS
        self._deadline = 0.0
        self._references: dict[tuple[str, int], _Reference] = {}
        self.result = Result()

    def run(self) -> Result:
        """Compare until something differs that matters, everything is compared, or the time is used up."""
        depths = compared_depths(self._model, self._window)
        if not depths or self._model.capabilities.max_batch < 2:
            return self.result
        self._begin()
        if self._effort.thorough:
            self._run_thorough()
        else:
            self._run_quick(depths)
        if all(found.rows > self._enough for found in self.result.differences):
            self._behind_image()
        for seq in range(self._model.capabilities.sequences):
            self._model.release(seq)
        return self.result

    def _begin(self) -> None:
        """The first forward pages the weights in, which any use of them would; the second sets the pace."""
        first = self._passages[0].rows(0, 2)
        self._model.release(0)
        self._model.forward([Rows(0, 0, first[:1], 1)])
        began = self._clock()
        self._costs.forward([Rows(0, 1, first[1:], 1)])
        plain_s = self._costs.expected_s(1)
        seconds = max(self._effort.seconds, min(_FORWARDS * plain_s, _MOST_S))
        self._deadline = began + seconds
        if plain_s > _SLOW_S and not self._effort.thorough:
            self._rows = _FEWER_ROWS

    # --- what is compared ------------------------------------------------------------------------------

    def _run_quick(self, depths: Sequence[int]) -> None:
        context = _Context(self._model, self._passages[0], self._lengthen, self._costs)
        usual = [depth for depth in depths if depth <= max(DEPTHS)]
        first = (self._passages[0], usual[0]), (self._passages[1], usual[-1])
        for (passage, depth), rows in zip(first, (_CELL_ROWS, 0), strict=True):
            step = _Step(passage, depth, self._walks(), needed=True, reading_s=_READING_S, rows=rows)
            if not self._take(context, step):
                return
        if self._model.capabilities.sequences > 1 and not self._together(context, first):
            return
        kept = set(self._references)
        for step in self._further(depths, first):
            if not self._take(context, step):
                return
            self._references = {key: self._references[key] for key in kept}

    def _behind_image(self) -> None:
        """Compare text behind an image, if there is one to compare with."""
        if self._image is None:
            return
        passage, spans = behind(self._passages[0], self._image)
        if spans[-1].end > self._model.capabilities.max_batch:  # a forward may have to have all of it
            self.result.complete = False
            return
        context = _Context(self._model, passage, None, self._costs, spans)
        step = _Step(passage, spans[-1].end, self._walks(), needed=True, reading_s=_READING_S)
        self._take(context, step)
        self.result.behind_image = passage.name in self.result.passages
        self.result.passages.discard(passage.name)
        self.result.depths.discard(step.depth)

    def _further(self, depths: Sequence[int], first: Sequence[tuple[Passage, int]]) -> Iterator[_Step]:
        """What follows what is needed: beyond a window, large forwards, and the other passages and depths."""
        (shallow_passage, shallow), (deep_passage, deep) = first
        if depths[-1] > deep:
            yield _Step(deep_passage, depths[-1], self._walks(), needed=True, reading_s=self._effort.seconds)
        yield _Step(shallow_passage, shallow, ((33,), (63,)))
        done = {(passage.name, depth) for passage, depth in first}
        rest = [
            (passage, depths[(turn + place) % len(depths)])
            for turn in range(len(depths))
            for place, passage in enumerate(self._passages, start=1)
        ]
        for count, (passage, depth) in enumerate(rest):
            if (passage.name, depth) not in done:
                yield _Step(passage, depth, self._walks())
            if count == 1:
                yield _Step(deep_passage, deep, _MORE_WALKS[:3])
            if count == 2:
                yield _Step(shallow_passage, shallow, ((129,),))
                yield _Step(deep_passage, deep, ((63,), (129,)))
            if count == 3:
                yield _Step(deep_passage, deep, _MORE_WALKS[3:])

    def _run_thorough(self) -> None:
        past = (self._window + PAST_WINDOW, 2 * self._window + PAST_WINDOW) if self._window else ()
        depths = _within(self._model, (*DEPTHS, *FAR_DEPTHS, *past))
        every = tuple((size,) for size in range(2, MOST_ROWS + 1))
        usual = (*self._walks(), *_MORE_WALKS, *((size,) for size in LARGE))
        rounds = [(passage, usual) for passage in self._passages] + [(self._passages[0], every)]
        done, total = 0, len(depths) * sum(sum(map(sum, walks)) for _, walks in rounds)
        for number, (passage, walks) in enumerate(rounds):
            context = _Context(self._model, passage, None, self._costs)
            for depth in depths:
                self._tell(done / total)
                if not self._take(context, _Step(passage, depth, walks)):
                    return
                self._drop_last_rows()
                done += sum(map(sum, walks))
            ends = (passage, depths[0]), (passage, depths[-1])
            alone = self._model.capabilities.sequences < 2 or number == len(self._passages)
            if not alone and not self._together(context, ends):
                return
            self._references.clear()

    def _drop_last_rows(self) -> None:
        """Of a large vocabulary they take much memory; other sequences are compared by the first rows."""
        for key, reference in self._references.items():
            self._references[key] = {row: reference[row] for row in reference if row < REFERENCE_ROWS}

    def _tell(self, done: float) -> None:
        if self._progress is not None:
            self._progress(f"Checking exactness thoroughly… {done:.0%}")

    def _walks(self) -> tuple[tuple[int, ...], ...]:
        return _WALKS if self._rows == REFERENCE_ROWS else _FEWER_WALKS

    # --- comparing -------------------------------------------------------------------------------------

    def _take(self, context: _Context, step: _Step) -> bool:
        """Compare, if there is time; returns whether to go on."""
        room = min(self._model.info.context_length - step.depth, self._model.capabilities.max_batch)
        walks = [fitting for walk in step.walks if (fitting := _fitting(walk, step.depth, room, self._model))]
        left = self._deadline - self._clock()
        if not step.needed and self._expected_s(step, walks) > left:
            self.result.complete = False
            return True
        if not context.reach(step.depth, step.reading_s or left):
            self.result.complete = False
            if step.needed:
                self.result.missed.add(step.depth)
            return True
        reference = self._reference(context, step, walks)
        for walk in walks:
            found = self._walk(context, step, walk, reference)
            if found is not None and not self._note(found):
                return False
            if not step.needed and self._clock() > self._deadline:
                self.result.complete = False
                break
        self.result.depths.add(step.depth)
        self.result.passages.add(step.passage.name)
        self.result.comparisons += 1
        return True

    def _note(self, found: Difference) -> bool:
        """Keep a difference; returns whether to go on: it is in larger forwards than drafts need."""
        self.result.differences.append(found)
        self.result.differences.sort(key=lambda difference: difference.rows)
        return found.rows > self._enough

    def _expected_s(self, step: _Step, walks: Sequence[Sequence[int]]) -> float:
        singles = sum(self._costs.expected_s(count) for _, count, _ in self._plan(step, walks))
        return singles + sum(self._costs.expected_s(size) for walk in walks for size in walk)

    def _plan(self, step: _Step, walks: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, int]]:
        """The forwards that complete the step's reference: (first row, rows, rows with logits) of each."""
        known = self._references.get((step.passage.name, step.depth), {})
        most = min(_CELL_ROWS, self._model.capabilities.max_batch)
        at = 0
        for row in sorted(self._compared_rows(step, walks) - known.keys()):
            while at < row:
                count = min(row - at, most)
                yield at, count, 0
                at += count
            yield row, 1, 1
            at = row + 1

    def _compared_rows(self, step: _Step, walks: Sequence[Sequence[int]]) -> set[int]:
        """The first rows and the last ones of each forward; in a thorough comparison all."""
        first = max(self._rows, step.rows)
        if self._effort.thorough:
            return set(range(max(first, *map(sum, walks), 0)))
        ends = [sum(walk[: place + 1]) for walk in walks for place in range(len(walk))]
        return set(range(first)) | {row for end in ends for row in range(max(0, end - _LAST_ROWS), end)}

    def _reference(self, context: _Context, step: _Step, walks: Sequence[Sequence[int]]) -> _Reference:
        """The logits of the step's rows, computed one by one."""
        reference = self._references.setdefault((step.passage.name, step.depth), {})
        for place, (row, count, wanted) in enumerate(list(self._plan(step, walks))):
            if not place:
                context.go(step.depth)
            tokens = step.passage.rows(step.depth + row, count)
            logits = self._costs.forward([Rows(0, step.depth + row, tokens, wanted)])
            if wanted:
                reference[row] = logits[0].copy()
        return reference

    def _walk(
        self, context: _Context, step: _Step, walk: Sequence[int], reference: _Reference
    ) -> Difference | None:
        """The first difference of forwards of these sizes one after the other."""
        context.go(step.depth)
        done = 0
        for place, size in enumerate(walk):
            tokens = step.passage.rows(step.depth + done, size)
            logits = self._costs.forward([Rows(0, step.depth + done, tokens, size)])
            differing, of = self._compare(logits, reference, done)
            if differing:
                rows = size if size > 1 else walk[place - 1]
                found = Difference(rows, step.depth, step.passage.name, differing, of)
                return self._alone(context, step, reference, max(walk[: place + 1])) or found
            done += size
            if done - 1 in reference:
                self.result.sizes.add(size)
        return None

    def _alone(self, context: _Context, step: _Step, reference: _Reference, most: int) -> Difference | None:
        """The smallest forward, up to `most` rows, that differs by itself: what a walk finds may come from
        the cells of the forward before.
        """
        sizes = sorted({size for walk in step.walks for size in walk if 1 < size <= most})
        for size in sizes:
            context.go(step.depth)
            logits = self._costs.forward([Rows(0, step.depth, step.passage.rows(step.depth, size), size)])
            differing, of = self._compare(logits, reference, 0)
            if differing:
                return Difference(size, step.depth, step.passage.name, differing, of)
        return None

    def _compare(self, logits: Logits, reference: _Reference, first: int) -> tuple[int, int]:
        """(differing bytes, compared bytes) of the rows, from number `first` on, that the reference has."""
        differing = of = 0
        for row, ours in enumerate(logits, start=first):
            if row not in reference:
                continue
            alone = reference[row]
            of += ours.nbytes
            self.result.logits += ours.size
            if not np.array_equal(ours.view(np.uint32), alone.view(np.uint32)):
                differing += int(np.count_nonzero(ours.view(np.uint8) != alone.view(np.uint8)))
        return differing, of

    def _together(self, context: _Context, places: Sequence[tuple[Passage, int]]) -> bool:
        """Compare rows of several sequences in a forward, at depths in turns; returns whether to go on."""
        known = [place for place in places if (place[0].name, place[1]) in self._references]
        able = self._model.capabilities
        many = min(MOST_SEQUENCES, able.sequences, able.max_batch)
        if not known or many < 2:
            return True
        chosen = [known[seq % len(known)] for seq in range(many)]
        for seq, (_, depth) in enumerate(chosen):
            if depth:
                self._model.restore(seq, context.saved(depth))
        done = [0] * many
        found = None
        for pattern in _TOGETHER:
            counts = pattern[:many]
            if found is None and sum(counts) <= able.max_batch:
                found = self._forward_together(chosen, counts, done)
                self.result.together = True
        for seq in range(many):
            self._model.release(seq)
        context.forget()
        return found is None or self._note(found)

    def _forward_together(
        self, chosen: Sequence[tuple[Passage, int]], counts: Sequence[int], done: list[int]
    ) -> Difference | None:
        batch = [
            Rows(seq, depth + done[seq], passage.rows(depth + done[seq], count), count)
            for seq, ((passage, depth), count) in enumerate(zip(chosen, counts, strict=True))
        ]
        logits, first = self._costs.forward(batch), 0
        for seq, ((passage, depth), count) in enumerate(zip(chosen, counts, strict=True)):
            reference = self._references[passage.name, depth]
            differing, of = self._compare(logits[first : first + count], reference, done[seq])
            if differing:
                return Difference(2, depth, passage.name, differing, of, beside=True)
            first += count
            done[seq] += count
        return None


def _fitting(walk: Sequence[int], depth: int, room: int, model: Model) -> tuple[int, ...]:
    """The forwards of a walk that a batch and the context have room for."""
    fitting: list[int] = []
    for size in walk:
        if size > room or depth + sum(fitting) + size > model.info.context_length:
            break
        fitting.append(size)
    return tuple(fitting)


def compare(
    model: Model,
    *,
    enough: int,
    effort: Effort = QUICK,
    window: int = 0,
    lengthen: Lengthen | None = None,
    clock: Callable[[], float] = perf_counter,
    progress: Callable[[str], None] | None = None,
    image: PreparedImage | None = None,
) -> Result:
    """Compare the model's arithmetic for single rows and for several.

    It ends with a difference in forwards of up to `enough` rows. `window`: tokens of a sliding window, or 0.
    `progress` gets a line now and then in a thorough comparison. `image`: one behind which text is compared.
    """
    run = _Comparison(
        model,
        enough=enough,
        effort=effort,
        window=window,
        lengthen=lengthen,
        clock=clock,
        progress=progress,
        image=image,
    )
    return run.run()
