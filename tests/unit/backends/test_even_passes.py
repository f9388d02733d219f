"""Rows of several sequences are filled up where that saves a pass over the weights, and nobody sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_factory
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.backends.llamacpp.passes import RECENT, Passes, count_passes
from foredraft.types import Rows
from llamacpp_cases import opened

SEQUENCES = 4
PROMPTS = [[7, 8], [20, 21, 22], [33], [40, 41, 42, 43]]
NEXT = [[50, 51, 52], [60], [70, 71], [80, 81, 82, 83, 84]]
SHORT = dict.fromkeys(range(SEQUENCES), 100)


@pytest.mark.parametrize(
    ("rows", "passes"),
    [
        ({}, 0),
        ({0: 5}, 1),
        ({0: 1, 1: 1, 2: 1}, 1),
        ({0: 3, 1: 1}, 2),
        ({0: 3, 1: 1, 2: 3, 3: 1}, 3),
        ({0: 1, 2: 1}, 2),
        ({0: 5, 1: 1, 2: 1, 3: 1}, 2),
        ({0: 1, 1: 2, 2: 3}, 3),
        ({3: 2, 1: 2, 2: 0}, 2),
    ],
)
def test_passes_are_counted_as_llama_cpp_divides_rows(rows: dict[int, int], passes: int) -> None:
    assert count_passes(rows) == passes


def learnt(a_pass: float, a_row: float) -> Passes:
    passes = Passes()
    for size in (1, 2, 4, 8):
        for _ in range(3):
            passes.took({0: size}, a_pass + a_row * size)
    return passes


def test_a_pass_and_a_row_are_told_apart() -> None:
    assert learnt(12.0, 1.5).costs() == pytest.approx((12.0, 1.5))


def test_nothing_is_filled_before_two_sizes_were_seen() -> None:
    passes = Passes()
    for _ in range(20):
        passes.took({0: 1, 1: 1}, 10.0)
    assert passes.costs() is None
    assert passes.evened({0: 3, 1: 1}, SHORT) == 0


def test_a_stall_is_not_taken_for_the_price_of_a_row() -> None:
    passes = learnt(12.0, 1.5)
    passes.took({0: 8}, 900.0)
    assert passes.costs() == pytest.approx((12.0, 1.5))


def test_what_was_not_seen_for_long_is_forgotten() -> None:
    passes = learnt(12.0, 1.5)
    for _ in range(RECENT + 1):
        passes.took({0: 1}, 40.0)  # the text has grown, and larger forwards are those of its beginning
    assert passes.costs() is None
    for _ in range(3):
        passes.took({0: 4}, 52.0)
    assert passes.costs() == pytest.approx((36.0, 4.0))


def test_forwards_of_several_passes_teach_nothing() -> None:
    passes = learnt(12.0, 1.5)
    for _ in range(20):
        passes.took({0: 3, 1: 1}, 500.0)
        passes.took({0: 30, 1: 30}, 500.0)
    assert passes.costs() == pytest.approx((12.0, 1.5))


@pytest.mark.parametrize(
    ("rows", "even"),
    [
        ({0: 3, 1: 1}, 3),
        ({0: 1, 2: 1}, 1),
        ({0: 3, 1: 1, 2: 3, 3: 1}, 3),
        ({0: 2, 1: 2}, 0),  # one pass as it is
        ({0: 4}, 0),
        ({0: 30, 1: 1}, 0),  # 29 rows more cost more than a pass
        ({0: 17, 1: 16, 2: 17, 3: 17}, 0),  # more than ever fills up
    ],
)
def test_rows_are_filled_up_where_a_pass_costs_more(rows: dict[int, int], even: int) -> None:
    assert learnt(12.0, 1.5).evened(rows, SHORT) == even


@pytest.mark.parametrize(
    ("rows", "cells"),
    [
        ({0: 1, 2: 1}, {0: 100, 1: 30_000, 2: 100}),  # an idle sequence keeps a long prefix
        ({0: 5, 1: 1}, {0: 100, 1: 30_000}),  # filler would be dearer than what is there
        ({0: 5, 1: 1}, {0: 4_000, 1: 8_001}),
    ],
)
def test_no_filler_where_rows_are_dearer(rows: dict[int, int], cells: dict[int, int]) -> None:
    assert learnt(12.0, 0.1).evened(rows, cells) == 0
    assert learnt(12.0, 0.1).evened(rows, dict.fromkeys(cells, 4_000)) == max(rows.values())


def test_no_more_rows_than_a_pass_can_hold() -> None:
    passes = Passes(most=8)
    for size in (1, 2, 4, 8, 8, 4, 2, 1, 1, 2, 4, 8):
        passes.took({0: size}, 12.0 + 1.5 * size)
    assert passes.evened({0: 3, 1: 1}, SHORT) == 3
    assert passes.evened({0: 5, 1: 4}, SHORT) == 0


def test_what_costs_more_filled_up_is_left_as_it_is_for_a_while() -> None:
    passes = learnt(12.0, 1.5)
    for ms in (40.0, 41.0, 39.0):  # 2 passes and 4 rows are 30
        assert passes.evened({0: 3, 1: 1}, SHORT) == 3
        passes.took_evened(ms)
    assert passes.evened({0: 3, 1: 1}, SHORT) == 0
    for _ in range(RECENT):
        for size in (2, 4):
            passes.took({0: size}, 12.0 + 1.5 * size)
    assert passes.evened({0: 3, 1: 1}, SHORT) == 3


def test_what_costs_less_filled_up_goes_on() -> None:
    passes = learnt(12.0, 1.5)
    for _ in range(50):
        assert passes.evened({0: 3, 1: 1}, SHORT) == 3
        passes.took_evened(21.0)


def test_dear_rows_are_not_filled_up() -> None:
    assert learnt(3.0, 3.0).evened({0: 3, 1: 1}, SHORT) == 0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf", weight_type="q4_0")


@pytest.fixture
def model(path: Path) -> Iterator[LlamaCppModel]:
    with opened(path, sequences=SEQUENCES) as model:
        model.with_capabilities(batch_invariant=True)
        yield model


def cheap_rows(model: LlamaCppModel) -> None:
    """Let it believe that every filler pays, and moving sequences together never does."""
    model._streams.pays = lambda _: False  # type: ignore[method-assign, assignment]
    passes = model._passes = learnt(1000.0, 0.001)
    passes.took = lambda *_: None  # type: ignore[method-assign]
    passes.took_evened = lambda *_: None  # type: ignore[method-assign]


def prompts(model: LlamaCppModel) -> None:
    for seq, prompt in enumerate(PROMPTS):
        model.release(seq)
        model.forward([Rows(seq, 0, prompt, 0)])


def following(model: LlamaCppModel, sequences: Sequence[int]) -> list[Any]:
    """The logits of the sequences' next rows in one forward, then of a further row of each alone."""
    prompts(model)
    batch = [Rows(seq, len(PROMPTS[seq]), NEXT[seq], len(NEXT[seq])) for seq in sequences]
    found = [model.forward(batch).copy()]
    for seq in range(SEQUENCES):
        assert model.length(seq) == len(PROMPTS[seq]) + (len(NEXT[seq]) if seq in sequences else 0)
        found.append(model.forward([Rows(seq, model.length(seq), (99,), 1)]).copy())
    return found


@pytest.mark.parametrize("sequences", [(0, 1), (1, 0), (0, 2), (0, 3), (3, 1, 0), (0, 1, 2, 3)])
def test_logits_and_cells_are_the_same(
    model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch, sequences: Sequence[int]
) -> None:
    expected = following(model, sequences)
    computed: list[int] = []
    decode = lib.llama_decode

    def watching(context: Any, batch: Any) -> int:
        computed.append(int(batch.n_tokens))
        return int(decode(context, batch))

    cheap_rows(model)
    monkeypatch.setattr(lib, "llama_decode", watching)
    found = following(model, sequences)
    many, most = max(sequences) - min(sequences) + 1, max(len(NEXT[seq]) for seq in sequences)
    assert many * most in computed
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


def test_prompts_are_not_filled_up(model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch) -> None:
    cheap_rows(model)
    filled: list[int] = []

    def watching(batch: Sequence[Rows]) -> list[Rows]:
        filled.append(len(batch))
        return list(batch)

    monkeypatch.setattr(model, "_with_idle", watching)
    prompts(model)
    model.forward([Rows(0, 2, [1, 2, 3], 1), Rows(1, 3, [1], 1)])
    assert not filled
    model.forward([Rows(0, 5, [1, 2, 3], 3), Rows(1, 4, [1], 1)])
    assert filled


def test_where_a_sequence_is_full_nothing_is_filled_up(model: LlamaCppModel) -> None:
    cheap_rows(model)
    room = model.info.context_length - 1
    model.forward([Rows(1, 0, [5] * room, 0)])
    assert model._passes.evened({0: 3, 1: 1}, {0: 0, 1: room}) == 3
    model.forward([Rows(0, 0, [1, 2, 3], 3), Rows(1, room, [1], 1)])
    assert (model.length(0), model.length(1)) == (3, room + 1)


def test_an_empty_sequence_between_others_stays_empty(model: LlamaCppModel) -> None:
    cheap_rows(model)
    for seq in range(SEQUENCES):
        model.release(seq)
    together = model.forward([Rows(0, 0, [4, 5], 2), Rows(2, 0, [6, 7], 2)]).copy()
    assert model._passes.evened({0: 2, 2: 2}, dict.fromkeys(range(3), 0)) == 2, "it was filled up"
    assert model.length(1) == 0
    assert lib.llama_memory_seq_pos_max(model._memory, 1) == -1
    model.release(2)
    assert np.array_equal(model.forward([Rows(2, 0, [6, 7], 2)]), together[2:])


def rows_computed(model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch) -> int:
    """The rows that llama.cpp is given for 2 rows of one sequence and 1 of another."""
    computed: list[int] = []
    decode = lib.llama_decode

    def watching(context: Any, batch: Any) -> int:
        computed.append(int(batch.n_tokens))
        return int(decode(context, batch))

    with monkeypatch.context() as patched:
        patched.setattr(lib, "llama_decode", watching)
        model.forward([Rows(0, model.length(0), [4, 5], 2), Rows(1, model.length(1), [6], 1)])
    return computed[-1]


def test_only_where_it_changes_no_bit_and_time_can_be_measured(
    model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheap_rows(model)
    assert rows_computed(model, monkeypatch) == 4
    model.with_capabilities(batch_invariant=False)
    assert rows_computed(model, monkeypatch) == 3
    model.with_capabilities(batch_invariant=True)
    model.info = replace(model.info, device="CUDA0")
    assert rows_computed(model, monkeypatch) == 3


def test_an_interrupt_leaves_nothing_behind(model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts(model)
    batch = [Rows(0, 2, [50, 51, 52], 3), Rows(2, 1, [70], 1)]
    expected = model.forward(batch).copy()
    prompts(model)
    cheap_rows(model)
    decode = lib.llama_decode

    def interrupted(context: Any, batch: Any) -> int:
        decode(context, batch)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(lib, "llama_decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.forward(batch)
    for seq, prompt in enumerate(PROMPTS):
        assert lib.llama_memory_seq_pos_max(model._memory, seq) == len(prompt) - 1
    assert np.array_equal(model.forward(batch), expected)


def test_without_room_for_filler_it_goes_on_without(
    model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts(model)
    cheap_rows(model)
    given: list[int] = []
    decode = lib.llama_decode

    def cramped(context: Any, batch: Any) -> int:
        given.append(int(batch.n_tokens))
        return 1 if batch.n_tokens > 4 else int(decode(context, batch))

    monkeypatch.setattr(lib, "llama_decode", cramped)
    assert len(model.forward([Rows(0, 2, [50, 51, 52], 3), Rows(1, 3, [60], 1)])) == 4
    assert given == [6, 4]
    assert (model.length(0), model.length(1)) == (5, 4)
