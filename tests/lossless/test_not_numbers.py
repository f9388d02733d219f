"""A request whose arithmetic overflows ends with an error, and no other request is touched by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import gguf_adapters
import gguf_dflash
import gguf_factory
import gguf_heads
import gguf_hybrids
import gguf_windows
import torch_cases
import torch_factory
import torch_heads
from foredraft import Engine, SamplingParams
from foredraft.backends.llamacpp.adapters import ContextAdapters
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.config import Adapter, ModelOptions
from foredraft.errors import BackendError
from foredraft.registry import backend_for
from foredraft.types import FinishReason, HeadRows, Logits, Rows, TokenEvent
from model_cases import text_tokens

BAD = 77
"""The token whose embedding is not numbers."""

PROMPTS = [[token for token in text_tokens(30, seed=seed) if token != BAD] for seed in range(6)]
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True, logit_bias={BAD: -100.0})

MODELS: dict[str, Callable[[Path], object]] = {
    "plain": lambda path: gguf_factory.tiny_llama(path, weight_type="f16", mixing=0.5),
    "window": lambda path: gguf_windows.tiny_gemma3(path, layers=6),  # the sixth sees all
    "hybrid": lambda path: gguf_hybrids.tiny_qwen35(path, mixing=0.5, weight_type="f16"),
}


def damage(path: Path) -> None:
    """Make the embedding of `BAD` infinite."""
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.name == "token_embd.weight":
            if tensor.data.dtype == np.uint8:  # q8_0: blocks of 34 bytes, the first two of which are a scale
                tensor.data[BAD].reshape(-1, 34)[:, :2].view(np.float16)[:] = np.inf
            else:
                tensor.data[BAD] = np.inf


def check(engine: Engine, sequences: int) -> None:
    """In every sequence a request fails, and what others answer beside it and after it stays the same."""
    right = [engine.generate(prompt, PARAMS).tokens for prompt in PROMPTS]
    for _ in range(sequences):
        poisoned = [*PROMPTS[0], BAD, *PROMPTS[1]]
        together = [engine.add(prompt, PARAMS) for prompt in (poisoned, *PROMPTS[:3])]
        bad, *others = engine.run(together)
        assert bad.finish_reason is FinishReason.ERROR
        assert "not numbers" in (bad.error or "")
        assert [done.tokens for done in others] == right[:3]
    again = engine.run([engine.add(prompt, PARAMS) for prompt in PROMPTS])
    assert [done.tokens for done in again] == right


@pytest.mark.parametrize("sequences", [1, 4])
@pytest.mark.parametrize("speculate", ["off", "suffix;recycle"])
@pytest.mark.parametrize("name", MODELS)
def test_only_the_request_that_overflows_fails(
    name: str, speculate: str, sequences: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    MODELS[name](path)
    damage(path)
    with Engine.load(
        path,
        context_length=256,
        sequences=sequences,
        threads=1,
        gpu_layers=0,
        cache_dir=tmp_path,
        remember=False,
        speculate=speculate,
    ) as engine:
        check(engine, sequences)


@pytest.mark.parametrize("speculate", ["off", "suffix;recycle"])
@pytest.mark.parametrize("kind", ["llama", "qwen3_5", "mamba2"])
def test_only_the_request_that_overflows_fails_in_torch(kind: str, speculate: str, tmp_path: Path) -> None:
    torch_factory.make_model(tmp_path, kind, tie_word_embeddings=False)
    tensors = load_file(tmp_path / "model.safetensors")
    (name,) = (name for name in tensors if "embed" in name and "vis" not in name)
    tensors[name][BAD] = np.inf
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with Engine(torch_cases.load(tmp_path, sequences=2)) as engine:
        engine.set_speculation(speculate)
        check(engine, 2)


def tiny_options(folder: Path, **others: Any) -> ModelOptions:
    return ModelOptions(context_length=256, threads=1, gpu_layers=0, cache_dir=folder, probe=False, **others)


def spoiled_head(folder: Path, name: str) -> tuple[Path, Path]:
    """A sound target, and a head of it whose embedding of `BAD` is infinite."""
    if name == "torch":
        torch_factory.make_model(folder / "model", "llama", num_hidden_layers=4, tie_word_embeddings=False)
        tensors = torch_heads.eagle3_tensors(own_embedding=True)
        tensors["embed_tokens.weight"][BAD] = np.inf
        return folder / "model", torch_heads.write_specforge(folder / "head", tensors)
    target, head = folder / "model.gguf", folder / "head.gguf"
    gguf_factory.tiny_llama(target, layers=4, mixing=0.5, weight_type="f16")
    if name.startswith("block"):
        gguf_dflash.tiny_dflash(head, kind="selector" if name == "block-selector" else "plain")
    else:
        gguf_heads.tiny_eagle3(head, window=int(name == "alone"), chosen=range(5, 384))
    damage(head)
    return target, head


@pytest.mark.parametrize("attention", ["auto", "off"])
@pytest.mark.parametrize("name", ["all", "alone", "block", "block-selector", "torch"])
def test_a_head_that_overflows_drafts_for_others_as_before(name: str, attention: str, tmp_path: Path) -> None:
    """It proposes nothing where its text has the bad token, is not given up, and nothing stays behind."""
    target, head = spoiled_head(tmp_path, name)

    def load(speculate: str) -> Engine:
        return Engine.load(
            target,
            speculate=speculate,
            context_length=256,
            sequences=2,
            threads=1,
            gpu_layers=0,
            flash_attention=attention,  # type: ignore[arg-type]
            cache_dir=tmp_path,
            remember=False,
        )

    poisoned = SamplingParams(max_tokens=8, ignore_eos=True, logit_bias={BAD: 100.0})
    requests = [(PROMPTS[0], poisoned), *((prompt, PARAMS) for prompt in PROMPTS[:3])]
    with load("off") as plain:
        right = [plain.generate(*request).tokens for request in requests]
    with load(f"heads:model={head}") as engine:
        before = [engine.generate(prompt, PARAMS).speculation.drafters["heads"] for prompt in PROMPTS[:3]]
        for _ in range(2):
            found = engine.run([engine.add(*request) for request in requests])
            assert [done.tokens for done in found] == right
            assert not engine.notes
        again = [engine.generate(prompt, PARAMS) for prompt in PROMPTS[:3]]
    assert [done.tokens for done in again] == right[1:]
    after = [done.speculation.drafters["heads"] for done in again]
    assert [one.drafted for one in after] == [one.drafted for one in before]
    assert all(one.drafted for one in before)


@pytest.mark.parametrize("how", ["dropped", "kept", "copied", "moved on"])
@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_that_is_given_up_leaves_nothing_behind(name: str, how: str, tmp_path: Path) -> None:
    """It overflows where nothing was looked at yet: its cells are dropped, or kept for a prompt that begins
    in the same way.
    """
    path = tmp_path / "model.gguf"
    MODELS[name](path)
    damage(path)
    sequences = 2 if how in ("copied", "dropped") else 1
    start = [token for token in text_tokens(60, seed=9) if token != BAD]
    poisoned = [*start, BAD, *PROMPTS[0] * 8]  # more than half is another text: its beginning is copied
    others = [*PROMPTS[:2], [*start, *PROMPTS[1]]]
    with Engine.load(
        path,
        speculate="off",
        context_length=512,
        batch=64,
        sequences=sequences,
        threads=1,
        gpu_layers=0,
        cache_dir=tmp_path,
        remember=False,
    ) as engine:
        right = [engine.generate(prompt, PARAMS).tokens for prompt in others]
        cache = engine._scheduler.cache
        while cache.evict():
            pass
        beside = engine.add(others[0], PARAMS) if how == "dropped" else None
        number = engine.add(poisoned, PARAMS)
        events = [*engine.step(), *engine.step()]
        request = engine._scheduler.find(number)
        assert request is not None
        assert len(start) < request.computed < len(poisoned)
        engine.abort(number)
        if how == "dropped":
            while cache.evict():
                pass
        while not engine.idle:
            events += engine.step()
        if beside is not None:
            said = [event.token for event in events if isinstance(event, TokenEvent)]
            assert tuple(said) == right[0]
        if how == "moved on":
            assert engine.generate(others[0], PARAMS).tokens == right[0]
        assert engine.generate(others[2], PARAMS).tokens == right[2]
        again = engine.run([engine.add(prompt, PARAMS) for prompt in others])
        assert [done.tokens for done in again] == right


@pytest.mark.parametrize("attention", ["auto", "off"])
@pytest.mark.parametrize("name", ["all", "alone", "block", "block-selector", "torch"])
def test_a_head_forgets_what_is_not_numbers(name: str, attention: str, tmp_path: Path) -> None:
    """A sequence that is dropped, or cut, leaves nothing behind for a shorter one."""
    target, head = spoiled_head(tmp_path, name)
    backend = backend_for(target)
    options = ModelOptions(
        context_length=256,
        sequences=2,
        threads=1,
        gpu_layers=0,
        watch=backend.features_for(target, head, ModelOptions()),
        flash_attention=attention,  # type: ignore[arg-type]
        cache_dir=tmp_path,
        probe=False,
    )
    model = backend.load(target, options)
    try:
        loaded = model.load_head(head, sequences=2)
        model.forward([Rows(0, 0, PROMPTS[0], 0)])
        features = model.features().copy()

        def read(seq: int, tokens: list[int], logits: int = 1) -> Logits:
            start, rows = loaded.length(seq) or 1, features[: len(tokens)]
            return loaded.forward([HeadRows(seq, start, tokens, rows, logits)]).copy()

        short, long = PROMPTS[0][1:10], PROMPTS[0][1:20]
        right = read(0, short)
        other = read(1, short)
        loaded.release(0)
        for seen in (True, False):
            found = read(0, [*long, BAD], logits=int(seen))
            assert np.isnan(found).any() == seen
            loaded.release(0)
            assert np.array_equal(read(0, short), right)
            loaded.release(0)
        read(0, short)
        read(0, [*long, BAD])
        loaded.truncate(0, 1 + len(short))
        again = read(0, [30])
        loaded.truncate(1, 1 + len(short))
        assert np.array_equal(read(1, [30]), again)
        loaded.release(1)
        assert np.array_equal(read(1, short), other)
    finally:
        model.close()


@pytest.mark.parametrize("beside", [(), (3,)], ids=["alone", "beside another"])
@pytest.mark.parametrize("exchanged", [True, False])
def test_a_neighbour_that_moves_with_streams_changes_no_bit(
    exchanged: bool, beside: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an adapter, nothing was seen of it, and it is looked at when two others come together."""
    path, adapter = tmp_path / "model.gguf", tmp_path / "one.gguf"
    gguf_factory.tiny_llama(path, weight_type="f16", mixing=0.5)
    gguf_adapters.lora(adapter, path, seed=1, strength=0.7)
    if not exchanged:
        monkeypatch.setattr(ContextAdapters, "_make_holders", lambda _: None)
    options = tiny_options(tmp_path, sequences=4, adapters=(Adapter("one", ((adapter, 1.0),)),))

    def run(unseen: bool) -> list[Logits]:
        """Sequences 0 and 2 decode, and perhaps 3 with the adapter; 1 has it too."""
        model = backend_for(path).load(path, options)
        assert isinstance(model, LlamaCppModel)
        try:
            assert model._adapters.exchanged == exchanged
            for seq in range(4):
                model.adapt(seq, "one" if seq % 2 else "")
                model.forward([Rows(seq, 0, PROMPTS[seq], int(seq != 1 or not unseen))])
            model._streams.lost(1e9)
            found = []
            for i in range(3):
                rows = [Rows(seq, len(PROMPTS[seq]) + i, [5 + seq], 1) for seq in (0, 2, *beside)]
                found.append(model.forward(rows).copy())
            assert model._streams.of == [1, 0, 2, 3]
            return [*found, model.forward([Rows(1, len(PROMPTS[1]), [5], 1)]).copy()]
        finally:
            model.close()

    for one, other in zip(run(unseen=True), run(unseen=False), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("attention", ["auto", "off"])
@pytest.mark.parametrize("seen", [True, False])
def test_a_neighbour_that_overflowed_moves_with_streams(seen: bool, attention: str, tmp_path: Path) -> None:
    """Its cells are longer than those that take their place, and stay behind them."""
    path = tmp_path / "model.gguf"
    gguf_factory.tiny_llama(path, weight_type="f16", mixing=0.5)
    damage(path)

    def run(neighbour: list[int]) -> list[Logits]:
        options = tiny_options(tmp_path, sequences=3, flash_attention=attention)
        model = backend_for(path).load(path, options)
        assert isinstance(model, LlamaCppModel)
        try:
            for seq in (0, 2):
                model.forward([Rows(seq, 0, PROMPTS[seq], 1)])
            model.forward([Rows(1, 0, neighbour, int(seen))])
            model._streams.lost(1e9)
            found = []
            for i in range(3):
                rows = [Rows(seq, len(PROMPTS[seq]) + i, [5 + seq], 1) for seq in (0, 2)]
                found.append(model.forward(rows).copy())
            assert model._streams.of == [1, 0, 2]
            return found
        finally:
            model.close()

    for one, other in zip(run([*PROMPTS[1], BAD, *PROMPTS[3]]), run(PROMPTS[1]), strict=True):
        assert np.array_equal(one, other)


def test_a_full_sequence_of_which_nothing_was_seen_is_not_called_bad(tmp_path: Path) -> None:
    """There is no room for the row that would tell: it is not kept, and another text is as before."""
    path = tmp_path / "model.gguf"
    gguf_factory.tiny_llama(path, weight_type="f16", mixing=0.5)
    model = backend_for(path).load(path, tiny_options(tmp_path, sequences=2))
    try:
        right = model.forward([Rows(0, 0, PROMPTS[0], 1)]).copy()
        model.release(0)
        model.forward([Rows(0, 0, text_tokens(256, seed=3), 1)])
        saved = model.snapshot(0)
        model.restore(0, saved)
        with pytest.raises(BackendError, match="full"):
            model.truncate(0, 100)
        with pytest.raises(BackendError, match="full"):
            model.fork(0, 1, 100)
        assert model.length(0) == 256
        model.release(0)
        assert np.array_equal(model.forward([Rows(0, 0, PROMPTS[0], 1)]), right)
    finally:
        model.close()


@pytest.mark.parametrize("unseen", [True, False])
def test_features_are_of_the_forward_before_which_streams_moved(unseen: bool, tmp_path: Path) -> None:
    target, head = tmp_path / "model.gguf", tmp_path / "head.gguf"
    gguf_factory.tiny_llama(target, layers=4, mixing=0.5, weight_type="f16")
    gguf_heads.tiny_eagle3(head, chosen=range(5, 384))
    watch = backend_for(target).features_for(target, head, ModelOptions())
    model = backend_for(target).load(target, tiny_options(tmp_path, sequences=3, watch=watch))
    assert isinstance(model, LlamaCppModel)
    try:
        for seq in (0, 2, 1):
            model.forward([Rows(seq, 0, PROMPTS[seq], int(seq != 1 or not unseen))])
        model._streams.lost(1e9)
        together = [Rows(seq, len(PROMPTS[seq]), [5 + seq, 7], 2) for seq in (0, 2)]
        model.forward(together)
        assert model._streams.of == [1, 0, 2]
        found = model.features().copy()
        model.release(1)  # nothing is left to look at
        for rows in together:
            model.truncate(rows.seq, rows.start)
        model.forward(together)
        assert np.array_equal(found, model.features())
    finally:
        model.close()


def test_a_head_drafts_where_streams_move_past_a_prompt_that_was_given_up(tmp_path: Path) -> None:
    target, head = tmp_path / "model.gguf", tmp_path / "head.gguf"
    gguf_factory.tiny_llama(target, layers=4, mixing=0.5, weight_type="f16")
    gguf_heads.tiny_eagle3(head, chosen=range(5, 384))
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    long = text_tokens(400, seed=9)
    with Engine.load(
        target,
        speculate=f"heads:model={head}",
        context_length=512,
        batch=64,
        sequences=4,
        threads=1,
        gpu_layers=0,
        cache_dir=tmp_path,
        remember=False,
    ) as engine:
        model = engine.model
        assert isinstance(model, LlamaCppModel)
        right = [engine.generate(PROMPTS[i], params).tokens for i in (0, 2)]
        while engine._scheduler.cache.evict():
            pass
        first = engine.add(PROMPTS[0], params)
        events = engine.step()
        given_up = engine.add(long, params)
        events += engine.step()
        second = engine.add(PROMPTS[2], params)
        events += engine.step()
        requests = [engine._scheduler.find(one) for one in (first, given_up, second)]
        assert [one.seq for one in requests if one] == [0, 1, 2]
        engine.abort(given_up)
        for _ in range(4):
            model._streams._lost_ms = -1e9
            events += engine.step()
        model._streams._lost_ms = 1e9
        third = engine.add(text_tokens(150, seed=5), params)
        while not engine.idle:
            events += engine.step()
        assert model._streams.of != sorted(model._streams.of)
        assert not engine.notes
        for number, tokens in zip((first, second), right, strict=True):
            said = [it.token for it in events if isinstance(it, TokenEvent) and it.request == number]
            assert tuple(said) == tokens
        assert any(isinstance(it, TokenEvent) and it.request == third for it in events)


def test_a_prompt_that_is_given_up_leaves_nothing_behind_in_torch(tmp_path: Path) -> None:
    """Nor is its beginning kept, whose rows read what came after them."""
    torch_factory.make_model(tmp_path, "llama", tie_word_embeddings=False)
    tensors = load_file(tmp_path / "model.safetensors")
    (name,) = (name for name in tensors if "embed" in name)
    tensors[name][BAD] = np.inf
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    model = torch_cases.load(tmp_path, sequences=2)
    try:
        start = [token for token in text_tokens(20, seed=9) if token != BAD]
        end = len(start)

        def read(seq: int, first: int) -> Logits:
            rows = Rows(seq, first, [*start, 30][first:], 1)
            return model.forward([rows]).copy()

        right = read(0, 0)
        model.release(0)
        for _ in range(2):
            model.forward([Rows(0, 0, [*start, BAD, *PROMPTS[0]], 0)])
            with pytest.raises(BackendError, match="not numbers"):
                model.fork(0, 1, end)
            model.forward([Rows(1, 0, [*start, BAD], 0)])
            with pytest.raises(BackendError, match="not numbers"):
                model.truncate(1, end)
            for seq in (0, 1):
                model.release(seq)
                assert np.array_equal(read(seq, 0), right)
                model.truncate(seq, end)
                assert np.array_equal(read(seq, end), right)
                model.release(seq)
    finally:
        model.close()
