"""Sequences that are computed together are brought together, once that pays, and nobody sees it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_factory
import gguf_hybrids
from foredraft import Engine, SamplingParams
from foredraft.backends.llamacpp import BACKEND
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.backends.llamacpp.passes import count_passes
from foredraft.backends.llamacpp.streams import MOST_BYTES, Streams
from foredraft.backends.rewind import RewindingModel
from foredraft.config import ModelOptions
from foredraft.types import FinishEvent, Rows
from llamacpp_cases import opened

SEQUENCES = 6
PROMPTS = [[7, 8], [20, 21, 22], [33], [40, 41, 42, 43], [50, 51], [61, 62, 63]]


def test_sequences_that_follow_one_another_stay() -> None:
    streams = Streams(8)
    assert not streams.scattered([3, 4, 5])
    assert streams.exchanges([5, 3, 4], [10] * 8) == []
    assert not streams.scattered([6])


def test_as_few_cells_as_possible_are_moved() -> None:
    streams = Streams(8)
    lengths = [0, 500, 0, 0, 300, 400, 20, 0]
    assert streams.scattered([1, 4, 5])
    assert streams.exchanges([1, 4, 5], lengths) == [(1, 3)]  # 500; 4 and 5 to where 1 is would be 700
    assert streams.exchanges([0, 6, 7], lengths) == [(0, 2), (6, 3), (7, 4)]  # 320, and at the end 400


@pytest.mark.parametrize("seed", range(20))
def test_any_sequences_come_together(seed: int) -> None:
    rng = random.Random(seed)
    streams = Streams(9)
    for _ in range(50):
        sequences = rng.sample(range(9), rng.randint(1, 9))
        for a, b in streams.exchanges(sequences, [rng.randint(0, 400) for _ in range(9)]):
            streams.exchange(a, b)
        assert not streams.scattered(sequences)
        assert count_passes(streams.rows(dict.fromkeys(sequences, 1))) == 1
        assert sorted(streams.of) == list(range(9))
        assert [streams.holds(stream) for stream in streams.of] == list(range(9))


def test_moving_pays_once_as_much_time_was_lost() -> None:
    streams = Streams(8)
    streams.moved(20_000_000, 10.0)  # 2 MB a millisecond
    for _ in range(4):
        assert not streams.pays(50_000_000)
        streams.took({0: 1, 2: 1, 5: 1}, 3.0)  # three passes in place of one
    assert not streams.pays(50_000_000)
    streams.took({0: 1, 2: 1}, 3.0)
    assert streams.pays(50_000_000)
    streams.moved(50_000_000, 25.0)
    assert not streams.pays(1)


def test_passes_that_moving_does_not_save_are_not_lost() -> None:
    streams = Streams(8)
    for _ in range(1000):
        streams.took({0: 1, 1: 30}, 3.0)
        streams.took({2: 1, 3: 5, 4: 1}, 3.0)
    assert not streams.pays(1)


def test_much_is_never_moved_at_a_time() -> None:
    streams = Streams(4)
    streams.lost(1e9)
    assert streams.pays(MOST_BYTES)
    assert not streams.pays(MOST_BYTES + 1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf", weight_type="q4_0")


@pytest.fixture
def model(path: Path) -> Iterator[LlamaCppModel]:
    with opened(path, sequences=SEQUENCES) as model:
        yield model


def fill(model: LlamaCppModel) -> None:
    for seq, prompt in enumerate(PROMPTS):
        model.release(seq)
        model.forward([Rows(seq, 0, prompt, 0)])


def alone(model: LlamaCppModel, seq: int, tokens: list[int]) -> Any:
    """The logits of the tokens one after the other, taken back afterwards."""
    held = model.length(seq)
    rows = [model.forward([Rows(seq, held + i, (token,), 1)]).copy() for i, token in enumerate(tokens)]
    model.truncate(seq, held)
    return np.concatenate(rows)


@pytest.mark.parametrize("together", [(0, 2, 5), (4, 1), (5, 3, 1, 0), (0, 5)])
def test_logits_and_cells_are_the_same(
    model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch, together: tuple[int, ...]
) -> None:
    fill(model)
    texts = {seq: [70 + seq, 80 + seq, 90 + seq] for seq in range(SEQUENCES)}
    expected = {seq: alone(model, seq, tokens) for seq, tokens in texts.items()}
    seen: list[list[int]] = []
    decode = lib.llama_decode

    def watching(context: Any, batch: Any) -> int:
        seen.append([batch.seq_id[i][0] for i in range(batch.n_tokens)])
        return int(decode(context, batch))

    monkeypatch.setattr(lib, "llama_decode", watching)
    model._streams.lost(1e9)
    for i in range(3):
        batch = [Rows(seq, model.length(seq), (texts[seq][i],), 1) for seq in together]
        for seq, row in zip(together, model.forward(batch).copy(), strict=True):
            assert np.array_equal(row, expected[seq][i]), (seq, i)
    first = seen[0][0]
    assert seen == [list(range(first, first + len(together)))] * 3
    for seq in range(SEQUENCES):  # whoever had to make room is as it was, too
        if seq not in together:
            assert model.length(seq) == len(PROMPTS[seq])
            assert np.array_equal(alone(model, seq, texts[seq]), expected[seq])


def test_what_moved_can_be_cut_copied_saved_and_freed(model: LlamaCppModel) -> None:
    fill(model)
    wanted = alone(model, 5, [90, 91])
    model._streams.lost(1e9)
    model.forward([Rows(0, 2, (70,), 1), Rows(5, 3, (71,), 1)])
    assert model._streams.of != list(range(SEQUENCES))
    model.truncate(5, 3)
    assert np.array_equal(alone(model, 5, [90, 91]), wanted)
    model.fork(5, 2, 3)
    assert np.array_equal(alone(model, 2, [90, 91]), wanted)
    saved = model.snapshot(5)
    model.release(5)
    assert model.length(5) == 0
    model.restore(1, saved)
    assert np.array_equal(alone(model, 1, [90, 91]), wanted)


def test_scattered_sequences_come_together_after_a_while(model: LlamaCppModel) -> None:
    fill(model)
    for _ in range(200):
        model.forward([Rows(seq, model.length(seq), (70,), 1) for seq in (0, 3, 5)])
        for seq in (0, 3, 5):
            model.truncate(seq, len(PROMPTS[seq]))
        if not model._streams.scattered([0, 3, 5]):
            return
    pytest.fail("200 forwards of three passes, and nothing moved")


def test_texts_are_the_same_while_requests_come_and_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At whatever moment they move."""
    moves: list[tuple[int, int]] = []
    exchange = Streams.exchange

    def watched(streams: Streams, a: int, b: int) -> None:
        moves.append((a, b))
        exchange(streams, a, b)

    monkeypatch.setattr(Streams, "pays", lambda *_: True)
    monkeypatch.setattr(Streams, "exchange", watched)
    options = ModelOptions(threads=1, gpu_layers=0, sequences=SEQUENCES, probe=False)
    work = [([20 + i, 40, 60 + i % 3], SamplingParams(max_tokens=4 + 7 * i % 19, seed=i)) for i in range(24)]
    with Engine(BACKEND.load(path, options)) as engine:
        engine.set_speculation("off")
        expected = [engine.generate(prompt, params).tokens for prompt, params in work]
        waiting, texts, asked = list(range(len(work))), [list[int]() for _ in work], dict[int, int]()
        while waiting or not engine.idle:
            if waiting and len(asked) < 3:
                number = waiting.pop(0)
                asked[engine.add(*work[number])] = number
            for event in engine.step():
                if isinstance(event, FinishEvent):
                    del asked[event.request]
                else:
                    texts[asked[event.request]].append(event.token)
    assert texts == [list(tokens) for tokens in expected]
    assert len(moves) > 5


def test_recurrent_states_stay_where_they_are(tmp_path: Path) -> None:
    path = gguf_hybrids.tiny_mamba2(tmp_path / "tiny.gguf")
    options = ModelOptions(threads=1, gpu_layers=0, sequences=3, probe=False)
    wrapped = BACKEND.load(path, options)
    assert isinstance(wrapped, RewindingModel)
    model = wrapped._model
    assert isinstance(model, LlamaCppModel)
    try:
        model._streams.lost(1e9)
        for i in range(3):
            model.forward([Rows(0, i, (70,), 1), Rows(2, i, (71,), 1)])
        assert model._streams.of == [0, 1, 2]
    finally:
        wrapped.close()
