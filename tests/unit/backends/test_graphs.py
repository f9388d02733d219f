"""A graph for each shape of a forward: built once, and nobody sees it in the results."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gguf_factory
from foredraft.backends.llamacpp import graphs, kernels
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.graphs import MOST_GRAPHS, MOST_IN_ALL, MOST_ROWS, Graphs
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.bench import cost_measure
from foredraft.engine import warmup
from foredraft.types import Rows
from llamacpp_cases import opened

SEQUENCES = 3


@pytest.fixture
def needed() -> None:
    """Skips the test where no graphs are kept."""
    kernels.attach()
    if not graphs.are_kept():
        pytest.skip(kernels.left_out() or "no graphs are kept")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf", weight_type="q4_0")


def reused(model: LlamaCppModel) -> int:
    """How many forwards built no graph, since the model was loaded."""
    return int(lib.llama_perf_context(model._context).n_reused)


def computed(model: LlamaCppModel, seed: int, steps: int) -> Iterator[np.ndarray]:
    """Logits of forwards of all shapes, between them what else is done to sequences."""
    rng = random.Random(seed)
    for _ in range(steps):
        sequences = rng.sample(range(SEQUENCES), rng.randint(1, SEQUENCES))
        batch = []
        for seq in sequences:
            if model.length(seq) > 280 or rng.random() < 0.05:
                model.release(seq)
            elif rng.random() < 0.3:
                model.truncate(seq, rng.randint(0, model.length(seq)))
            elif rng.random() < 0.05 and model.length(seq):
                model.restore(seq, model.snapshot(rng.choice([seq, *sequences])))
            count = rng.choice([1, 1, 1, 2, 2, 3, 5, MOST_ROWS, MOST_ROWS + 1, 60])
            tokens = [rng.randrange(model.info.vocab_size) for _ in range(count)]
            batch.append(Rows(seq, model.length(seq), tokens, rng.choice([1, count])))
        yield model.forward(batch).copy()


@pytest.mark.usefixtures("needed")
@pytest.mark.parametrize("seed", range(4))
def test_logits_are_the_same_bits(path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path, sequences=SEQUENCES) as model:
        kept = list(computed(model, seed, 120))
    monkeypatch.setattr(graphs, "_native", lambda: None)
    with opened(path, sequences=SEQUENCES) as model:
        plain = list(computed(model, seed, 120))
    assert all(np.array_equal(one, other) for one, other in zip(kept, plain, strict=True))


@pytest.mark.usefixtures("needed")
def test_a_shape_that_was_there_builds_nothing(path: Path) -> None:
    with opened(path, sequences=1) as model:
        for turn in range(5):
            for count in (1, 3, 1, 2, 5):
                before = reused(model)
                model.forward([Rows(0, 0, [7] * count, count)])
                model.truncate(0, 0)
                assert turn == 0 or reused(model) == before + 1, count


@pytest.mark.usefixtures("needed")
def test_no_more_than_a_few_are_kept(path: Path) -> None:
    with opened(path, sequences=1) as model:
        for logits in (1, MOST_ROWS):
            for count in range(1, MOST_ROWS + 1):
                model.forward([Rows(0, 0, [7] * count, min(count, logits))])
                model.truncate(0, 0)
        assert len(model._graphs._kept) == MOST_GRAPHS
        before = reused(model)
        model.forward([Rows(0, 0, [7] * MOST_ROWS, MOST_ROWS)])
        assert reused(model) > before, "the last are those that are kept"


@pytest.mark.parametrize("sizes", [warmup.SIZES, cost_measure.ROWS])
def test_who_measures_sizes_in_turns_finds_the_graph_of_each(sizes: Sequence[int]) -> None:
    """With a place too few each is built anew, every time: V(2) of a 135M model was 1.2 in place of 1.05."""
    assert len({rows for rows in sizes if rows <= MOST_ROWS}) <= MOST_GRAPHS


class Counted:
    """Places for graphs, of which so many can be had."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.inside: int | None = None
        self.freed: list[int] = []

    def refused(self, context: object) -> bytes | None:
        return None

    def new(self, context: object) -> int | None:
        self.left -= 1
        return None if self.left < 0 else 100 + self.left

    def swap(self, context: object, graph: int) -> None:
        assert self.inside in (None, graph), "the context's own has to be put back first"
        self.inside = None if self.inside == graph else graph

    def free(self, graph: int) -> None:
        assert self.inside is None
        self.freed.append(graph)


@pytest.mark.parametrize("most", [0, 1, 2, 100])
def test_each_shape_has_its_own_and_all_are_given_back(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    native = Counted(most)
    monkeypatch.setattr(graphs, "_native", lambda: native)
    kept = Graphs(None)
    rng = random.Random(most)
    for _ in range(300):
        shape, rows = rng.randrange(MOST_GRAPHS + 4), rng.choice([1, MOST_ROWS, MOST_ROWS + 1])
        kept.use(shape, rows)
        assert (native.inside is not None) == (most > 0 and rows <= MOST_ROWS)
        if native.inside is not None:
            assert kept._kept[shape] == native.inside
    kept.close()
    assert len(set(native.freed)) == len(native.freed) == min(most, MOST_GRAPHS)


@pytest.mark.parametrize(("sequences", "kept"), [(1, MOST_GRAPHS), (2, 2 * MOST_GRAPHS), (100, MOST_IN_ALL)])
def test_every_sequence_has_as_many_up_to_a_bound(
    sequences: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = Counted(1000)
    monkeypatch.setattr(graphs, "_native", lambda: native)
    several = Graphs(object(), sequences)
    for shape in range(3 * MOST_IN_ALL):
        several.use(shape, 1)
    assert len(several._kept) == kept
    several.close()
    assert len(native.freed) == kept


def test_without_them_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_native", lambda: None)
    kept = Graphs(None)
    kept.use("shape", 1)
    kept.close()
    assert not kept._kept


def test_a_context_whose_members_are_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    native = Counted(100)
    monkeypatch.setattr(native, "refused", lambda context: b"the context's members were not found")
    monkeypatch.setattr(graphs, "_native", lambda: native)
    kept = Graphs(None)
    kept.use("shape", 1)
    kept.close()
    assert not kept._kept
    assert "No graphs are kept: the context's members were not found." in caplog.text


@pytest.mark.usefixtures("needed")
def test_the_members_are_found(path: Path) -> None:
    """And not in an object that holds other words."""
    native = graphs._native()
    assert native is not None
    with opened(path, sequences=1) as model:
        assert native.refused(model._context) is None
        model.forward([Rows(0, 0, [7, 8], 2)])
        assert native.refused(model._context) is None


@pytest.mark.usefixtures("needed")
def test_a_llama_cpp_that_lacks_the_functions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = kernels.in_use()
    assert found is not None
    handle = SimpleNamespace(foredraft_graphs_attach=lambda library: b"ggml_backend_sched_new")
    stand_in: Any = SimpleNamespace(native=SimpleNamespace(handle=handle))
    monkeypatch.setattr(kernels, "in_use", lambda: stand_in)
    assert graphs._native.__wrapped__() is None
    assert "lacks ggml_backend_sched_new" in caplog.text
