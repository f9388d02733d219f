"""What a head that predicts blocks promises (protocols.Head, `block`), whatever computes it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest

import gguf_dflash
import gguf_factory
from foredraft.errors import BackendError, OutOfKVError
from foredraft.protocols import Head, Model
from foredraft.testing import FakeHead, FakeModel, markov_logits
from foredraft.types import HeadRows
from head_cases import alike, rows, states
from model_cases import Workspace, one_thread, prefill, text_tokens

CONTEXT, SEQUENCES = 160, 3
TEXT = text_tokens(40)
CHOSEN = range(10, 200)
VOCABULARY = 384


@dataclass(frozen=True, slots=True)
class Case:
    """A target and a head with these options. With a `cycle` the target repeats so many tokens, and the head
    knows it.
    """

    options: dict[str, Any]
    cycle: int = 0


CASES: dict[str, Case] = {
    "plain": Case({"depth": 3}),
    "plain-tied": Case({"tied": True}),
    "plain-reduced": Case({"chosen": list(CHOSEN)}),
    "windows": Case({"depth": 3, "window": 6}),
    "causal": Case({"causal": True}),
    "sections": Case({"sections": True}),
    "markov": Case({"kind": "markov"}),
    "markov-after": Case({"kind": "markov", "after": True, "confidence": True}),
    "markov-reduced": Case({"kind": "markov", "chosen": list(CHOSEN), "confidence": True}),
    "selector": Case({"kind": "selector"}),
    "plain-right": Case({}, cycle=1),
    "markov-right": Case({"kind": "markov"}, cycle=gguf_dflash.CHOICES),
    "markov-after-right": Case({"kind": "markov", "after": True}, cycle=7),
    "selector-right": Case({"kind": "selector"}, cycle=gguf_dflash.CHOICES),
}


def load(name: str, workspace: Workspace) -> tuple[Model, Path | None]:
    """A case's model, and its head's file."""
    if name == "fake":
        logits = markov_logits(VOCABULARY, order=1)
        features = ("layer:0", "layer:2")
        return FakeModel(
            VOCABULARY, logits=logits, context_length=CONTEXT, sequences=SEQUENCES, features=features
        ), None
    from foredraft.backends.llamacpp import BACKEND

    case = CASES[name]
    target = workspace.file(f"blocks-{name}.gguf", lambda path: _make_target(path, case))
    head = workspace.file(f"blocks-{name}-head.gguf", lambda path: _make_head(path, target, case))
    watch = BACKEND.features_for(target, head)
    options = replace(one_thread(workspace, CONTEXT, SEQUENCES), watch=watch, probe=False)
    return BACKEND.load(target, options), head


def _make_target(path: Path, case: Case) -> object:
    if case.cycle:
        return gguf_dflash.tiny_cycles(path, case.cycle, vocab=VOCABULARY)
    return gguf_factory.tiny_llama(path, vocab=VOCABULARY, layers=4, mixing=0.5)


def _make_head(path: Path, target: Path, case: Case) -> object:
    first = TEXT[-1] - TEXT[-1] % max(1, case.cycle)
    return gguf_dflash.tiny_dflash(
        path,
        vocab=VOCABULARY,
        right=target if case.cycle else None,
        proposes=range(first, first + case.cycle),
        **case.options,
    )


def open_head(model: Model, path: Path | None, sequences: int = SEQUENCES) -> Head:
    if isinstance(model, FakeModel):
        return FakeHead(model, block=7, sequences=sequences)
    return model.load_head(path, sequences=sequences)


Pair = tuple[Model, Head]


@pytest.fixture(scope="module")
def loaded(workspace: Workspace) -> Iterator[Callable[[str], Pair]]:
    """Each case's model and head, loaded once."""
    pairs: dict[str, Pair] = {}

    def get(name: str) -> Pair:
        if name not in pairs:
            model, path = load(name, workspace)
            pairs[name] = model, open_head(model, path)
        return pairs[name]

    yield get
    for model, head in pairs.values():
        head.close()
        model.close()


@pytest.fixture(params=["fake", *CASES])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(name: str, loaded: Callable[[str], Pair]) -> Pair:
    """A model and its head, whose sequences are empty."""
    model, head = loaded(name)
    for seq in range(SEQUENCES):
        model.release(seq)
        head.release(seq)
    return model, head


def test_what_it_says_of_itself(pair: Pair) -> None:
    model, head = pair
    assert set(head.needs) <= set(model.capabilities.features)
    assert head.needs
    assert head.block in (7, 8)
    assert not head.trees
    assert head.window == 0
    assert head.sequences == SEQUENCES
    assert head.info.vocab_size == model.info.vocab_size
    assert [head.length(seq) for seq in range(SEQUENCES)] == [0] * SEQUENCES


@pytest.mark.parametrize("wanted", [0, 1, 3, 7])
def test_it_returns_as_many_tokens_as_asked_for(pair: Pair, wanted: int) -> None:
    model, head = pair
    features = states(model, TEXT)
    logits = head.forward([rows(0, TEXT, features, 1, len(TEXT), wanted)])
    assert logits.shape == (wanted, model.info.vocab_size)
    assert not np.isnan(logits).any()
    assert np.isfinite(logits).any(axis=1).all()
    assert head.length(0) == len(TEXT)


def test_a_block_is_the_same_however_the_text_was_read(pair: Pair) -> None:
    model, head = pair
    features = states(model, TEXT)
    expected = head.forward([rows(0, TEXT, features, 1, len(TEXT), 7)]).copy()
    for parts in ((1, 2, 3, 20, len(TEXT)), (1, 39, len(TEXT)), (1, *range(2, len(TEXT) + 1))):
        for first, end in pairwise(parts):
            found = head.forward([rows(1, TEXT, features, first, end, 7 if end % 2 == 0 else 0)])
        assert alike(found, expected)
        head.release(1)


def test_more_rows_than_are_computed_at_once(pair: Pair) -> None:
    model, head = pair
    text = text_tokens(150, seed=4)
    features = states(model, text)
    expected = head.forward([rows(0, text, features, 1, 150, 5)]).copy()
    head.forward([rows(1, text, features, 1, 149, 0)])
    assert alike(head.forward([rows(1, text, features, 149, 150, 5)]), expected)


def test_sequences_do_not_see_each_other(pair: Pair) -> None:
    model, head = pair
    texts = [TEXT[:9], text_tokens(12, seed=1), text_tokens(5, seed=2)]
    features = [states(model, text) for text in texts]
    for counts in ((3, 3, 3), (7, 2, 7), (1, 0, 4)):
        expected = []
        for text, of, count in zip(texts, features, counts, strict=True):
            expected.append(head.forward([rows(0, text, of, 1, len(text), count)]).copy())
            head.release(0)
        for order in ((0, 1, 2), (2, 0, 1), (1, 0), (2, 0)):
            batch = [rows(seq, texts[seq], features[seq], 1, len(texts[seq]), counts[seq]) for seq in order]
            assert alike(head.forward(batch), np.concatenate([expected[seq] for seq in order]))
            assert [head.length(seq) for seq in order] == [len(texts[seq]) for seq in order]
            for seq in order:
                head.release(seq)


@pytest.mark.parametrize("name", ["fake", *(name for name, case in CASES.items() if case.cycle)])
def test_a_head_that_is_right_drafts_what_the_target_writes(pair: Pair) -> None:
    model, head = pair
    text = TEXT[:7] + TEXT[-1:]
    truth: list[int] = []
    row = prefill(model, 0, text)
    features = model.features().copy()
    for _ in range(8):
        truth.append(int(row.argmax()))
        row = prefill(model, 0, truth[-1:])
    batch = [rows(seq, [*text, truth[0]], features, 1, len(text) + 1, 7) for seq in range(SEQUENCES)]
    found = [int(row.argmax()) for row in head.forward(batch)]
    assert found == truth[1:8] * SEQUENCES


def test_truncate_drops_what_follows(pair: Pair) -> None:
    model, head = pair
    features = states(model, TEXT)
    expected = head.forward([rows(0, TEXT, features, 1, 20, 4)]).copy()
    head.truncate(0, 15)
    assert head.length(0) == 15
    assert alike(head.forward([rows(0, TEXT, features, 15, 20, 4)]), expected)
    head.truncate(0, 40)
    assert head.length(0) == 20, "never longer"
    head.truncate(0, 1)
    assert head.length(0) == 0
    assert alike(head.forward([rows(0, TEXT, features, 1, 20, 4)]), expected)


def test_text_that_was_replaced_leaves_nothing(pair: Pair) -> None:
    model, head = pair
    other = [*TEXT[:12], *text_tokens(8, seed=6)]
    mine, theirs = states(model, TEXT), states(model, other)
    expected = head.forward([rows(1, TEXT, mine, 1, 20, 7)]).copy()
    head.forward([rows(0, other, theirs, 1, 20, 7)])
    head.truncate(0, 12)
    assert alike(head.forward([rows(0, TEXT, mine, 12, 20, 7)]), expected)


def test_a_sequence_may_begin_anywhere(pair: Pair) -> None:
    model, head = pair
    features = states(model, TEXT)
    head.forward([rows(0, TEXT, features, 25, 30, 0)])
    assert head.length(0) == 30
    found = head.forward([rows(0, TEXT, features, 30, 33, 2)]).copy()
    head.release(0)
    assert alike(head.forward([rows(0, TEXT, features, 25, 33, 2)]), found)
    head.truncate(0, 10)
    assert head.length(0) == 0
    head.forward([rows(0, TEXT, features, 3, 5, 1)])
    assert head.length(0) == 5


def test_release_is_of_one_sequence(pair: Pair) -> None:
    model, head = pair
    features = states(model, TEXT)
    for seq in range(2):
        head.forward([rows(seq, TEXT, features, 1, 20, 1)])
    head.release(0)
    assert [head.length(seq) for seq in range(SEQUENCES)] == [0, 20, 0]
    found = head.forward([rows(1, TEXT, features, 20, 25, 1)]).copy()
    assert alike(head.forward([rows(2, TEXT, features, 1, 25, 1)]), found)


def test_nothing_of_the_target_changes(pair: Pair) -> None:
    model, head = pair
    features = states(model, TEXT)
    prefill(model, 0, TEXT)
    before = bytes(model.snapshot(0)), model.length(0)  # type: ignore[call-overload]
    head.forward([rows(seq, TEXT, features, 1, len(TEXT), 7) for seq in range(SEQUENCES)])
    head.truncate(0, 5)
    head.release(1)
    assert (bytes(model.snapshot(0)), model.length(0)) == before  # type: ignore[call-overload]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "chosen" in case.options])
def test_tokens_that_it_never_proposes(pair: Pair) -> None:
    model, head = pair
    features = states(model, TEXT)
    logits = head.forward([rows(0, TEXT, features, 1, len(TEXT), 4)])
    for row in logits:
        assert np.flatnonzero(np.isfinite(row)).tolist() == list(CHOSEN)
        assert np.isneginf(row[~np.isfinite(row)]).all()


def test_rows_that_it_cannot_compute(pair: Pair) -> None:
    model, head = pair
    features = states(model, TEXT)
    head.forward([rows(0, TEXT, features, 1, 10, 3)])
    for batch in (
        [rows(-1, TEXT, features, 1, 3, 1)],
        [rows(SEQUENCES, TEXT, features, 1, 3, 1)],
        [HeadRows(1, 1, TEXT[1:3], features[:1], 1)],
        [HeadRows(1, 0, TEXT[:2], features[:2], 1)],
        [HeadRows(0, 10, TEXT[10:11], None, 1)],  # a block is no state to go on from
        [rows(0, TEXT, features, 10, 12, head.block + 1)],
        [rows(0, TEXT, features, 11, 12, 1)],  # does not follow
    ):
        with pytest.raises(BackendError):
            head.forward(batch)
        if not isinstance(head, FakeHead):
            assert [head.length(seq) for seq in range(SEQUENCES)] == [10, 0, 0]


def test_a_block_may_end_beyond_the_context(pair: Pair) -> None:
    model, head = pair
    text = text_tokens(CONTEXT, seed=5)
    features = states(model, text)
    logits = head.forward([rows(seq, text, features, 1, CONTEXT, 7) for seq in range(SEQUENCES)])
    assert logits.shape == (7 * SEQUENCES, model.info.vocab_size)
    assert np.isfinite(logits).any(axis=1).all()


@pytest.mark.parametrize("name", CASES)  # the double does not count its rows
def test_a_full_head_is_as_before(pair: Pair) -> None:
    model, head = pair
    text = text_tokens(CONTEXT, seed=5)
    features = states(model, text)
    head.forward([rows(0, text, features, 1, CONTEXT, 1)])
    expected = head.forward([rows(1, text, features, 1, 9, 1)]).copy()
    head.truncate(1, 8)
    more = np.concatenate([features, features])
    with pytest.raises(OutOfKVError):
        head.forward([HeadRows(0, CONTEXT, text[:2], more[:2], 1), rows(1, text, features, 8, 9, 1)])
    assert [head.length(0), head.length(1)] == [CONTEXT, 8]
    assert alike(head.forward([rows(1, text, features, 8, 9, 1)]), expected)


def test_it_is_closed_before_its_model_or_with_it(name: str, workspace: Workspace) -> None:
    model, path = load(name, workspace)
    features = states(model, TEXT)
    first = open_head(model, path, 1)
    first.close()
    first.close()
    second = open_head(model, path, 2)
    second.forward([rows(1, TEXT, features, 1, 5, 2)])
    kept = ref(first)
    model.close()
    if not isinstance(model, FakeModel):
        for head in (first, second):
            with pytest.raises(BackendError, match="closed"):
                head.forward([rows(0, TEXT, features, 1, 5, 1)])
        del head
    second.close()
    model.close()
    del first
    gc.collect()
    assert kept() is None
