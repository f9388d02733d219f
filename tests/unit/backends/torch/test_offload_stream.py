"""Layers arrive before they are computed, buffers are not overwritten too soon, and copies hide computing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.backends.torch.offload_budget import BUFFERS, spread
from foredraft.backends.torch.offload_stream import Copier, Layers, Streamed
from foredraft.planner.cost import CostCurve
from foredraft.types import Load, Round

Buffer = list[str]
"""Holds the name of the layer that is in it."""


class Recording:
    """Copies at once, or only when somebody waits: whatever a device does lies in between."""

    def __init__(self, count: int, *, early: bool) -> None:
        self.buffers: list[Buffer] = [["nothing"] for _ in range(count)]
        self.early = early
        self.calls: list[str] = []
        self.pending: dict[int, str] = {}
        self.reading: set[int] = set()
        self.fails = False

    def start(self, slot: int, source: str) -> None:
        assert slot not in self.reading, "the layer in this buffer is still computed"
        if self.fails:
            raise RuntimeError("the bus is on fire")
        self.calls.append(f"copy {source}")
        self.pending[slot] = source
        if self.early:
            self.buffers[slot][0] = source

    def wait(self, slot: int) -> None:
        self.buffers[slot][0] = self.pending[slot]
        self.reading.add(slot)

    def computed(self, slot: int) -> None:
        self.reading.remove(slot)

    def settle(self) -> None:
        self.calls.append("settle")
        self.reading.clear()

    def close(self) -> None:
        self.calls.append("close")


def layers_of(count: int, streamed: int, copier: Copier) -> Layers[Buffer]:
    places = spread(streamed, count)
    return Layers(
        [
            Streamed(f"layer {i}", tuple(copier.buffers)) if i in places else [f"layer {i}"]
            for i in range(count)
        ],
        copier,
    )


def compute(layers: Layers[Buffer], copier: Recording, stop: int = -1) -> None:
    """A forward, which fails at layer `stop`."""
    seen = []
    with closing(iter(layers)) as arriving:
        for index, layer in enumerate(arriving):
            copier.calls.append(f"compute {layer[0]}")
            if index == stop:
                raise MemoryError
            seen.append(layer[0])
    assert seen == [f"layer {i}" for i in range(len(layers))]


sizes = st.integers(1, 12).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count)))


@given(sizes, st.booleans(), st.lists(st.integers(-6, 11), min_size=1, max_size=6))
def test_every_layer_is_there_when_it_is_computed(
    shape: tuple[int, int], early: bool, stops: list[int]
) -> None:
    """In forward after forward, of which some fail midway."""
    count, streamed = shape
    copier = Recording(min(BUFFERS, streamed), early=early)
    layers = layers_of(count, streamed, copier)
    for stop in stops:
        if 0 <= stop < count:
            with pytest.raises(MemoryError):
                compute(layers, copier, stop)
        else:
            compute(layers, copier)


def test_the_next_layer_is_copied_while_one_is_computed() -> None:
    copier = Recording(2, early=True)
    layers = layers_of(4, 4, copier)
    compute(layers, copier)
    assert copier.calls == [
        "copy layer 0",
        "copy layer 1",
        "compute layer 0",
        "copy layer 2",
        "compute layer 1",
        "copy layer 3",
        "compute layer 2",
        "copy layer 0",
        "compute layer 3",
        "copy layer 1",
    ]
    copier.calls.clear()
    compute(layers, copier)
    assert copier.calls[0] == "compute layer 0", "it was fetched after the forward before"


@pytest.mark.parametrize("streamed", [1, 2])
def test_no_more_layers_than_buffers_are_copied_once(streamed: int) -> None:
    copier = Recording(streamed, early=True)
    layers = layers_of(5, streamed, copier)
    for _ in range(3):
        compute(layers, copier)
    assert sum(call.startswith("copy") for call in copier.calls) == streamed


@pytest.mark.parametrize("stop", [0, 3])
def test_a_failure_leaves_nothing_under_way(stop: int) -> None:
    copier = Recording(2, early=False)
    layers = layers_of(6, 6, copier)
    with pytest.raises(MemoryError):
        compute(layers, copier, stop)
    assert copier.calls[-1] == "settle"
    copier.calls.clear()
    compute(layers, copier)
    assert copier.calls[:2] == ["copy layer 0", "copy layer 1"], "what the buffers hold is not relied on"
    assert "settle" not in copier.calls


def test_a_copy_that_cannot_begin_is_a_failure_too() -> None:
    copier = Recording(2, early=True)
    layers = layers_of(4, 4, copier)
    compute(layers, copier)
    copier.fails = True
    with pytest.raises(RuntimeError, match="on fire"):
        compute(layers, copier)
    assert copier.calls[-1] == "settle"
    copier.fails = False
    compute(layers, copier)


def test_closing_frees_layers_and_buffers() -> None:
    copier = Recording(2, early=True)
    layers = layers_of(4, 3, copier)
    layers.close()
    layers.close()
    assert copier.calls == ["close"]
    assert len(layers) == 0


def test_without_a_copier_they_are_a_list() -> None:
    layers = Layers(["a", "b"])
    assert list(layers) == ["a", "b"]
    assert list(layers) == ["a", "b"]
    layers.close()
    assert list(layers) == []


# --- in virtual time -----------------------------------------------------------------------------------


@dataclass
class Clock:
    ms: float = 0.0


class Timed(Recording):
    """One copy after the other, each of them in `copy_ms`, beside what is computed."""

    def __init__(self, count: int, clock: Clock, copy_ms: float) -> None:
        super().__init__(count, early=False)
        self.clock, self.copy_ms = clock, copy_ms
        self.idle_from = 0.0
        self.arrives: dict[int, float] = {}

    def start(self, slot: int, source: str) -> None:
        super().start(slot, source)
        self.arrives[slot] = self.idle_from = max(self.clock.ms, self.idle_from) + self.copy_ms

    def wait(self, slot: int) -> None:
        super().wait(slot)
        self.clock.ms = max(self.clock.ms, self.arrives[slot])


def forwards(
    count: int, streamed: int, copy_ms: float, layer_ms: Callable[[int], float], rows: list[int]
) -> Iterator[float]:
    """How long forwards of so many rows take, one after the other, after a first one that is not counted."""
    clock = Clock()
    layers = layers_of(count, streamed, Timed(min(BUFFERS, streamed), clock, copy_ms))
    for index, size in enumerate([1, *rows]):
        began = clock.ms
        with closing(iter(layers)) as arriving:
            for _ in arriving:
                clock.ms += layer_ms(size)
        if index:
            yield clock.ms - began


@pytest.mark.parametrize(("copy_ms", "compute_ms"), [(9.0, 1.0), (4.0, 4.0), (1.0, 6.0)])
def test_copying_and_computing_overlap(copy_ms: float, compute_ms: float) -> None:
    took = list(forwards(8, 8, copy_ms, lambda rows: compute_ms, [1, 1, 1]))
    assert took == [pytest.approx(8 * max(copy_ms, compute_ms))] * 3, "not the sum of both"


def test_layers_that_stay_hide_copies_too() -> None:
    (took,) = forwards(12, 4, 3.0, lambda rows: 1.0, [1])
    assert took == pytest.approx(12.0), "three layers are computed while one is copied"


def test_a_streamed_model_has_a_flat_curve_and_the_planner_sees_it() -> None:
    """Every further row costs 45 % of the first one, and a copy as much as 20 rows."""

    def layer_ms(rows: int) -> float:
        return 1.0 + 0.45 * (rows - 1)

    sizes = [1, 1, *(size for rows in (2, 4, 8, 16, 32, 48) for size in (rows, 1, 1))]
    curves = []
    for streamed in (0, 16):
        curve = CostCurve()
        for rows, ms in zip(sizes, forwards(16, streamed, layer_ms(20), layer_ms, sizes), strict=True):
            curve.learn(Round(Load(1, 0, 0), rows, {}, ms, 0.0, ()))
        curves.append(curve)
    resident, offloaded = curves
    assert offloaded.baseline_ms == pytest.approx(layer_ms(20) / layer_ms(1) * resident.baseline_ms)
    by_rows = [[0.0, *curve.costs(48)] for curve in curves]
    assert by_rows[0][16] == pytest.approx(layer_ms(16))
    last_layer = (layer_ms(16) - layer_ms(1)) / (16 * layer_ms(20))
    assert by_rows[1][16] == pytest.approx(1.0 + last_layer), "it alone cannot be hidden"
    assert by_rows[1][48] < 0.2 * by_rows[0][48]
    assert offloaded.break_even(1.05) < 0.2 * resident.break_even(1.05), "guesses pay that did not"
