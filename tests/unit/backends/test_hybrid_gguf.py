"""GGUF models with a recurrent state: what llama.cpp gets wrong is kept from it, and texts stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import gguf_hybrids
from drafter_cases import drafted_from
from foredraft.backends.llamacpp import recurrent
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.loading import load_model
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.backends.rewind import RewindingModel
from foredraft.cli import diagnosis
from foredraft.config import ModelOptions
from foredraft.engine.engine import Engine
from foredraft.errors import BackendError
from foredraft.protocols import Model
from foredraft.testing import assert_lossless
from foredraft.types import Completion, Rows, SamplingParams
from matrix import matrix
from model_cases import prefill, text_tokens

TEXT = text_tokens(20)
DRAFT = text_tokens(12, seed=1)

WRITERS: dict[str, Callable[[Path], Path]] = {
    "qwen35": partial(gguf_hybrids.tiny_qwen35, state=8, layers=2, mixing=0.3),
    "qwen35-wide-state": gguf_hybrids.tiny_qwen35,
    "lfm2": gguf_hybrids.tiny_lfm2,
    "falcon-h1": gguf_hybrids.tiny_falcon_h1,
    "mamba2": gguf_hybrids.tiny_mamba2,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hybrids")
    for name, write in WRITERS.items():
        write(made / f"{name}.gguf")
    return made


def load(folder: Path, name: str, *, sequences: int = 1, probe: bool = True) -> RewindingModel:
    options = ModelOptions(
        context_length=512, sequences=sequences, threads=1, gpu_layers=0, probe=probe, cache_dir=folder
    )
    model = load_model(folder / f"{name}.gguf", options)
    assert isinstance(model, RewindingModel)
    return model


def inner(model: RewindingModel) -> LlamaCppModel:
    found = model._model
    assert isinstance(found, LlamaCppModel)
    return found


# --- what llama.cpp would do ---------------------------------------------------------------------------


def test_the_first_row_of_a_forward_is_not_taken_back_by_llama_cpp(folder: Path) -> None:
    """It would say that it did, and go on from the state after the last row."""
    model = inner(load(folder, "qwen35", probe=False))
    prefill(model, 0, TEXT)
    model.forward([Rows(0, len(TEXT), DRAFT[:3], 3)])
    assert model.spare(0) == 2 < model.capabilities.rollback_bound
    with pytest.raises(BackendError):
        model.truncate(0, len(TEXT))
    assert model.length(0) == len(TEXT) + 3
    model.truncate(0, len(TEXT) + 1)
    model.close()


def test_states_from_before_a_rollback_are_not_gone_back_to(folder: Path) -> None:
    """llama.cpp would take one that was never meant."""
    model = inner(load(folder, "qwen35", probe=False))
    prefill(model, 0, TEXT)
    model.forward([Rows(0, len(TEXT), DRAFT[:6], 6)])
    model.truncate(0, len(TEXT) + 3)
    with pytest.raises(BackendError):
        model.truncate(0, len(TEXT) + 2)
    prefill(model, 0, DRAFT[:1])
    with pytest.raises(BackendError):
        model.truncate(0, len(TEXT) + 2)
    model.close()


def test_a_sequence_taken_back_can_be_saved_at_once(folder: Path) -> None:
    model = load(folder, "qwen35", sequences=2)
    prefill(model, 0, TEXT)
    model.forward([Rows(0, len(TEXT), DRAFT, len(DRAFT))])
    model.truncate(0, len(TEXT) + len(DRAFT) - 3)
    model.restore(1, model.snapshot(0))
    assert np.array_equal(prefill(model, 1, TEXT), prefill(model, 0, TEXT))
    model.close()


def test_a_checkpoint_is_as_large_for_a_long_sequence(folder: Path) -> None:
    model = inner(load(folder, "falcon-h1", probe=False))
    prefill(model, 0, TEXT)
    short = model.checkpoint(0)
    assert isinstance(short, bytearray)
    size = len(short)
    prefill(model, 0, text_tokens(400))
    assert model.checkpoint(0, short) is short, "the buffer is used again"
    assert len(short) == size < len(model.snapshot(0)) / 4
    model.close()


# --- how many states are kept --------------------------------------------------------------------------


@pytest.mark.parametrize("sequences", [1, 3, 12])
def test_as_many_states_are_kept_as_are_small_beside_the_weights(folder: Path, sequences: int) -> None:
    model = load(folder, "qwen35", sequences=sequences, probe=False)
    kept = model.capabilities.rollback_bound
    prefill(model, 0, TEXT)
    state = inner(model).checkpoint(0)
    assert isinstance(state, bytearray)
    share = len(state) / model.info.size_bytes
    assert 0 < kept <= recurrent.MOST
    assert kept * share <= recurrent.SHARE
    assert kept * share * sequences <= recurrent.SHARE_OF_ALL
    most = min(recurrent.SHARE, recurrent.SHARE_OF_ALL / sequences)
    assert kept == recurrent.MOST or (kept + 1) * share > most, "no fewer than that"
    model.close()


@pytest.mark.parametrize("name", ["qwen35-wide-state", "falcon-h1", "mamba2"])
def test_none_is_kept_where_they_are_large_or_cannot_be(folder: Path, name: str) -> None:
    model = load(folder, name, probe=False)
    assert model.capabilities.rollback_bound == 0
    assert "recomputed" in model.info.settings["rollback"]
    model.close()


def test_a_llama_cpp_that_goes_on_from_a_wrong_state_is_not_trusted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would from that after the last row, were it told to take all rows of a forward back."""
    real = lib.llama_memory_seq_rm

    def one_too_many(memory: object, seq: int, first: int, end: int) -> bool:
        return bool(real(memory, seq, first - 1 if first > 0 else first, end))

    monkeypatch.setattr(lib, "llama_memory_seq_rm", one_too_many)
    model = load(folder, "qwen35", probe=False)
    monkeypatch.undo()
    assert model.capabilities.rollback_bound == 0
    prefill(model, 0, TEXT)
    model.forward([Rows(0, len(TEXT), DRAFT, len(DRAFT))])
    model.truncate(0, len(TEXT) + 10)
    assert model.to_recompute(0) == 10
    model.close()


# --- texts ---------------------------------------------------------------------------------------------


@matrix(name=sorted(WRITERS), temperature=[0.0, 0.8], concurrent=[False, True])
def test_speculation_changes_nothing(folder: Path, name: str, temperature: float, concurrent: bool) -> None:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=60, ignore_eos=True)
    prompts = [text_tokens(count, seed=count) for count in (3, 17, 40)]
    texts = [[*prompt, *plain(folder, name, prompt, params).tokens] for prompt in prompts]
    models: list[RewindingModel] = []

    def model() -> Model:
        models.append(load(folder, name, sequences=3))
        return models[-1]

    if not (probed := load(folder, name)).capabilities.batch_invariant:
        pytest.skip(f"not exact here: {probed.capabilities.invariance_note}")
    probed.close()
    origins = assert_lossless(
        model, lambda _: [drafted_from(texts, 1)], prompts, params, concurrent=concurrent
    )
    assert origins["scripted"] > 40


def plain(folder: Path, name: str, prompt: Sequence[int], params: SamplingParams) -> Completion:
    engine = Engine(load(folder, name), drafters=())
    answer = engine.generate(list(prompt), params=params)
    engine.close()
    return answer


def test_auto_speculates_and_says_how_tokens_are_taken_back(folder: Path) -> None:
    notes: dict[str, tuple[str, ...]] = {}
    for name in ("qwen35", "mamba2"):
        with Engine(load(folder, name, probe=False)) as engine:
            engine.set_speculation("auto")
            found = diagnosis.speculation(engine)
        assert found.runs
        notes[name] = found.notes
        with Engine.load(folder / f"{name}.gguf", cache_dir=folder, remember=False, threads=1) as engine:
            params = SamplingParams(max_tokens=40, ignore_eos=True)
            answer = engine.generate(TEXT * 4, params=params)
        assert len(answer.tokens) == 40
        assert answer.speculation.notes == notes[name]
    assert "are computed again" in notes["mamba2"][0]
    assert "are rejected" in notes["qwen35"][0]


@pytest.mark.parametrize("name", ["qwen35", "falcon-h1"])
def test_a_conversation_on_disk_goes_on(folder: Path, tmp_path: Path, name: str) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    prompt = text_tokens(300, seed=7)
    turns: list[Completion] = []
    for _ in range(2):  # the second time in another process, as far as the engine can tell
        with Engine.load(
            folder / f"{name}.gguf", cache_dir=tmp_path, prefix_cache_gb=0.1, threads=1, speculate="suffix"
        ) as engine:
            turns.append(engine.generate(prompt, params=params))
        prompt = [*prompt, *turns[-1].tokens, *TEXT]
    assert turns[1].usage.cached_tokens == 300 + 19
    with Engine.load(folder / f"{name}.gguf", cache_dir=tmp_path, threads=1, speculate="off") as engine:
        assert engine.generate(prompt[: -len(TEXT) - 20], params=params).tokens == turns[1].tokens
