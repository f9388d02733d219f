"""The batch cost curve V(n), learnt from rounds as they happen: medians, because machines are noisy.

What is kept is V(n)/V(1) for bands of context depth (`ratios`): every row reads the whole KV cache for
itself, so the deeper the context the less is shared between rows (measured, 135M Q4_0 on a CPU: V(16)/V(1)
is 4.1 at 64 tokens, 6.1 at 1,024, 8.6 at 4,000). V(1) itself is `pace`.

V(1) is that of a plain forward after others like it, V(n) that of n rows after fewer or more: it includes
what the change of size takes (`resize`), which a second forward of n rows saves and the next plain one takes
again. `prices` has all of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from foredraft.planner.company import InPasses, Shapes, company_of
from foredraft.planner.pace import Pace
from foredraft.planner.ratios import Ratios
from foredraft.planner.resize import Resize
from foredraft.types import Round

SHALLOW = 384
"""Tokens of context up to which the depth makes no difference worth a band; each further band doubles it."""


def band_of(depth: int) -> int:
    """The band of a context depth in tokens."""
    return (depth // SHALLOW).bit_length()


def depth_of(band: int) -> int:
    """A depth that stands for a band, in tokens."""
    return SHALLOW // 2 if band == 0 else SHALLOW * 3 // 2 << (band - 1)


class CostCurve:
    """V(n)/V(1) for the depth and the number of requests at hand, which `focus` sets. `ragged`: of the
    model's `Capabilities`.
    """

    def __init__(self, *, ragged: bool = True) -> None:
        self._ragged = ragged
        self._round = 0
        self._pace = Pace()
        self._resize = Resize()
        self._bands: dict[tuple[int, int], Ratios | InPasses] = {(0, 0): Ratios()}  # by company and depth
        self._band = 0, 0
        self._ratios = self._bands[0, 0]

    @property
    def rounds(self) -> int:
        """Rounds of decoding since the start."""
        return self._round

    @property
    def known(self) -> bool:
        """Whether a plain forward has been seen."""
        return self._pace.known

    @property
    def single_ms(self) -> float:
        """V(1) now, in milliseconds."""
        return self._pace.ms

    @property
    def stale(self) -> bool:
        """Whether a round should go without drafts, to measure what plain decoding costs now."""
        return self._pace.stale(self._round)

    def focus(self, depth: int, decoding: int = 1) -> None:
        """From now on it is about this depth, and so many requests in a forward. What was never seen there
        begins as `_expected` says.
        """
        wanted = company_of(decoding), band_of(depth)
        if wanted != self._band:
            if wanted not in self._bands:
                self._bands[wanted] = self._begun(wanted)
            self._band, self._ratios = wanted, self._bands[wanted]
        if isinstance(self._ratios, InPasses):
            self._ratios.among(decoding)

    def _begun(self, wanted: tuple[int, int]) -> Ratios | InPasses:
        """The curve of a company and a depth not seen yet: as the nearest depth's of the nearest company
        that is no larger.
        """
        company, band = wanted
        among = [known for known in self._bands if known[0] <= company]
        like = self._bands[min(among, key=lambda known: (company - known[0], abs(known[1] - band)))]
        if company and not self._ragged:
            return InPasses(like, self._round)
        made = Ratios()
        made.seed(like.values(), self._round, like.measured)
        return made

    @property
    def in_passes(self) -> bool:
        """Whether drafts for several requests are passes of their own."""
        return isinstance(self._ratios, InPasses)

    @property
    def resize(self) -> float:
        """What a forward of another size than the one before it takes longer, in plain forwards."""
        return self._resize.value

    def seed(self, curve: Mapping[int, Mapping[int, float]], resize: float | None = None) -> None:
        """Begin with a stored curve: milliseconds by depth and rows, with one row at every depth; and with
        what a change of size takes, in plain forwards.
        """
        for depth, sizes in curve.items():
            ratios = self._bands.setdefault((0, band_of(depth)), Ratios())
            assert isinstance(ratios, Ratios)
            ratios.seed({rows: ms / sizes[1] for rows, ms in sizes.items()}, self._round)
        if resize is not None:
            self._resize.seed(resize)

    def curve(self) -> dict[int, dict[int, float]]:
        """What is known now of one request, to be stored: milliseconds by depth and rows."""
        return {
            depth_of(band): {rows: ratio * self.single_ms for rows, ratio in ratios.values().items()}
            for (company, band), ratios in sorted(self._bands.items())
            if company == 0
        }

    def learn(self, measured: Round, drafts: Sequence[int] = ()) -> None:
        """A round is over, in which drafts of these lengths were verified."""
        load, decoding = measured.load, bool(measured.outcomes)
        self.focus(load.depth, load.decoding)
        if decoding:
            self.tick()
        # A prompt's rows cost less than verified ones, which need logits each; so do those computed again.
        if load.prefill_rows or load.owed:
            self.disturbed()
        else:
            self.add(measured.rows, measured.forward_ms, plain=decoding and not drafts, drafts=drafts)

    def tick(self) -> None:
        """A round of decoding begins to count: measurements grow older."""
        self._round += 1

    def add(self, rows: int, ms: float, *, plain: bool = False, drafts: Sequence[int] = ()) -> None:
        """A forward of `rows` rows took `ms`. `plain`: none of them was a draft's (one row never is).
        `drafts`: the lengths of those there were.
        """
        plain = plain or rows == 1
        same = self._resize.forward(rows)
        if rows > 1:
            single = self._pace.near(self._round)
            if single is None and self._ratios.beyond(rows):
                single = self._pace.ms or None  # where nothing is known, a rough value is better than none
            if single is not None:
                self._learn(rows, ms / single + (self.resize if same else 0.0), drafts)
        single_ms = ms / (self.took(rows, drafts) + self.resize * ((not same) - (rows > 1)))
        if plain:
            self._resize.plain(ms, single_ms, same=same)
            self._pace.plain(single_ms, self._round)
        else:
            self._pace.drafted(single_ms)

    def _learn(self, rows: int, ratio: float, drafts: Sequence[int]) -> None:
        if isinstance(self._ratios, InPasses):
            self._ratios.learn(rows, ratio, self._round, drafts)
        else:
            self._ratios.learn(rows, ratio, self._round)

    def disturbed(self) -> None:
        """A forward of another kind, whose time says nothing: the next one is of another size."""
        self._resize.forward(0)

    def ratio(self, rows: int) -> float:
        """V(rows)/V(1)."""
        return self._ratios.ratio(rows, self._round)

    def ratios(self, first: int, count: int) -> list[float]:
        """V(n)/V(1) of `count` sizes from `first` on."""
        return self._ratios.span(first, count, self._round)

    def prices(self, plain: int, count: int) -> list[float]:
        """What the next forward costs with 0 to `count` - 1 rows more than the `plain` ones, in V(1): with
        what the change of size takes now, and on the way back to a plain one.

        Whether the next round goes back is not known. Charged at once, and to a plain round that follows a
        drafted one as well, it comes out the same: after a change only going on with another size is dearer.
        """
        prices = self.ratios(plain, count)
        resize, before = self.resize, self._resize.rows
        if not resize:
            return prices
        prices[0] += resize * ((before != plain) - (plain > 1))
        prices[1:] = [price + resize for price in prices[1:]]
        if plain < before < plain + count:
            prices[before - plain] -= resize
        return prices

    def took(self, rows: int, drafts: Sequence[int]) -> float:
        """V/V(1) of a forward of so many rows, with drafts of these lengths among them."""
        if drafts and isinstance(self._ratios, InPasses):
            return self._ratios.together(drafts, self._round)
        return self.ratio(rows)

    def even(self, decoding: int, rows: int) -> float:
        """V/V(1) of a forward with so many rows of each request."""
        return self.took(decoding * rows, [rows - 1] * decoding if rows > 1 else ())

    def beyond_plain(self, plain: int, drafts: Sequence[int]) -> float:
        """What drafts of these lengths make the next forward of `plain` requests cost more, in V(1)."""
        if self.in_passes:
            shapes = self.shapes(plain, max(drafts) + 1)
            return shapes.price(drafts) - shapes.plain
        prices = self.prices(plain, sum(drafts) + 1)
        return prices[-1] - prices[0]

    def shapes(self, plain: int, count: int) -> Shapes:
        """What the next forward costs with `plain` rows and drafts of up to `count` - 1 tokens each, as
        `prices` has it, where drafts are passes.
        """
        assert isinstance(self._ratios, InPasses)
        shapes = self._ratios.shapes(plain, count, self._round)
        if not self.resize:
            return shapes
        before = self.resize * ((self._resize.rows != plain) - (plain > 1))
        return replace(shapes, plain=shapes.base + before, change=self.resize)

    def turn(self, decoding: int) -> float:
        """What a plain forward of so many requests takes for each of them, in V(1)."""
        return self.ratio(decoding) / max(decoding, 1)

    def row_price(self) -> float:
        """The least that a further row costs, in V(1): see `Ratios.row_price`."""
        return self._ratios.row_price(self._round)

    def break_even(self, margin: float) -> float:
        """The least chance of every draft token with which some draft pays: see `Ratios.break_even`."""
        return self._ratios.break_even(margin, self._round, self.resize)
