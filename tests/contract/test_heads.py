"""What every head promises (protocols.Head), whatever computes it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import ref

import numpy as np
import pytest

import gguf_factory
import gguf_heads
import gguf_hybrids
import gguf_mimo
import torch_factory
import torch_heads
from foredraft.errors import BackendError, OutOfKVError, UnsupportedModelError
from foredraft.protocols import Backend, Head, Model
from foredraft.testing import FakeModel, markov_logits
from foredraft.types import HeadRows
from head_cases import alike, rows, states
from model_cases import Workspace, one_thread, prefill, text_tokens

CONTEXT, SEQUENCES = 160, 3
TEXT = text_tokens(40)
CHOSEN = range(10, 200)
VOCABULARY = 384


@dataclass(frozen=True, slots=True)
class Case:
    """A target, made by `target` of a file's place, and a head made by `head` of its and the target's place;
    None: its own layers. `right`: it drafts what the target writes. `torch`: both are folders of safetensors.
    """

    target: Callable[[Path], object] | None = None
    head: Callable[[Path, Path], object] | None = None
    right: bool = False
    chosen: bool = False
    torch: bool = False


def _llama(mixing: float) -> Callable[[Path], object]:
    return lambda path: gguf_factory.tiny_llama(path, vocab=VOCABULARY, layers=4, mixing=mixing)


def _hybrid(mixing: float) -> Callable[[Path], object]:
    return lambda path: gguf_hybrids.tiny_qwen35(path, following=1, mixing=mixing, weight_type="f32")


def _random(**options: object) -> Callable[[Path, Path], object]:
    return lambda path, _target: gguf_heads.tiny_eagle3(path, vocab=VOCABULARY, **options)  # type: ignore[arg-type]


def _right(**options: object) -> Callable[[Path, Path], object]:
    return lambda path, target: gguf_heads.tiny_eagle3(path, vocab=VOCABULARY, right=target, **options)  # type: ignore[arg-type]


def _right_reduced(path: Path, target: Path) -> object:
    chosen = sorted(set(gguf_heads.next_tokens(target)))
    return gguf_heads.tiny_eagle3(path, vocab=VOCABULARY, right=target, chosen=chosen, window=1)


def _torch_llama(path: Path) -> object:
    return torch_factory.make_tiny_llama(path, num_hidden_layers=4, tie_word_embeddings=False)


def _torch_head(known: Sequence[int] | None = None, **changes: object) -> Callable[[Path, Path], object]:
    tensors = torch_heads.eagle3_tensors(known=known)
    return lambda path, _target: torch_heads.write_speculators(path, tensors, **changes)


def _torch_mimo(mixing: float) -> Callable[[Path], object]:
    def make(path: Path) -> Path:
        source = gguf_mimo.tiny_mimo2(path.with_suffix(".source"), mixing=mixing)
        return torch_heads.make_mimo_of(path, source)

    return make


CASES: dict[str, Case] = {
    "fake": Case(right=True),
    "eagle3": Case(_llama(0.5), _random(layers=(1, 3, 2))),
    "eagle3-reduced": Case(_llama(0.5), _random(chosen=list(CHOSEN)), chosen=True),
    "eagle3-tied": Case(_llama(0.5), _random(tied=True, chosen=list(CHOSEN)), chosen=True),
    "eagle3-alone": Case(_llama(0.5), _random(window=1)),
    "eagle3-right": Case(_llama(0.0), _right(), right=True),
    "eagle3-right-alone": Case(_llama(0.0), _right(window=1, tied=True), right=True),
    "eagle3-right-reduced": Case(_llama(0.0), _right_reduced, right=True),
    "mtp": Case(_hybrid(0.5)),
    "mtp-right": Case(_hybrid(0.0), right=True),
    "mtp-chained": Case(lambda path: gguf_mimo.tiny_mimo2(path, mixing=0.5)),
    "mtp-chained-right": Case(lambda path: gguf_mimo.tiny_mimo2(path, mixing=0.0), right=True),
    "torch": Case(_torch_llama, _torch_head(), torch=True),
    "torch-reduced": Case(_torch_llama, _torch_head(CHOSEN), chosen=True, torch=True),
    "torch-alone": Case(_torch_llama, _torch_head(foredraft_window=1), torch=True),
    "torch-right": Case(torch_heads.make_forgetful, torch_heads.write_knowing, right=True, torch=True),
    "torch-mtp": Case(lambda path: torch_heads.make_mtp(path, "qwen3_5"), torch=True),
    "torch-mtp-chained": Case(_torch_mimo(0.5), torch=True),
    "torch-mtp-chained-right": Case(_torch_mimo(0.0), right=True, torch=True),
    "torch-mtp-right": Case(
        lambda path: torch_heads.make_mtp(path, "glm4_moe", knowing=True), right=True, torch=True
    ),
}


def load(name: str, workspace: Workspace) -> tuple[Model, Path | None]:
    """A case's model, and its head's file."""
    from foredraft.backends import llamacpp, torch

    case = CASES[name]
    backend: Backend = torch.BACKEND if case.torch else llamacpp.BACKEND
    ending = "" if case.torch else ".gguf"
    if case.target is None:
        return FakeModel(
            VOCABULARY,
            logits=markov_logits(VOCABULARY, order=1),
            context_length=CONTEXT,
            sequences=SEQUENCES,
            features=("layer:0", "layer:2"),
        ), None
    target = workspace.file(f"heads-{name}{ending}", case.target)
    head = None
    if case.head is not None:
        make = case.head
        head = workspace.file(f"heads-{name}-head{ending}", lambda path: make(path, target))
    watch = backend.features_for(target, head)
    options = replace(one_thread(workspace, CONTEXT, SEQUENCES), watch=watch, probe=False)
    return backend.load(target, options), head


Pair = tuple[Model, Head]


@pytest.fixture(scope="module")
def loaded(workspace: Workspace) -> Iterator[Callable[[str], Pair]]:
    """Each case's model and head, loaded once."""
    pairs: dict[str, Pair] = {}

    def get(name: str) -> Pair:
        if name not in pairs:
            model, path = load(name, workspace)
            pairs[name] = model, model.load_head(path, sequences=SEQUENCES)
        return pairs[name]

    yield get
    for model, head in pairs.values():
        head.close()
        model.close()


@pytest.fixture(params=sorted(CASES))
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


def drafted(head: Head, batch: list[HeadRows], count: int) -> list[list[int]]:
    """The likeliest `count` tokens after the last row of each sequence; the head has the rows of all."""
    logits = head.forward(batch).copy()
    drafts: list[list[int]] = [[] for _ in batch]
    for depth in range(count):
        for draft, row in zip(drafts, logits, strict=True):
            draft.append(int(row.argmax()))
        following = [
            HeadRows(one.seq, one.start + len(one.tokens) + depth, draft[-1:], None, 1)
            for one, draft in zip(batch, drafts, strict=True)
        ]
        logits = head.forward(following).copy()
    return drafts


def test_what_it_says_of_itself(pair: Pair) -> None:
    model, head = pair
    assert set(head.needs) <= set(model.capabilities.features)
    assert head.needs
    assert head.sequences == SEQUENCES
    assert head.info.vocab_size == model.info.vocab_size
    assert head.info.name
    assert head.window >= 0
    assert [head.length(seq) for seq in range(SEQUENCES)] == [0] * SEQUENCES


@pytest.mark.parametrize("wanted", [0, 1, 3, len(TEXT) - 1])
def test_it_returns_the_last_rows_asked_for(pair: Pair, wanted: int) -> None:
    model, head = pair
    features = states(model, TEXT)
    logits = head.forward([rows(0, TEXT, features, 1, len(TEXT), wanted)])
    assert logits.shape == (wanted, model.info.vocab_size)
    assert not np.isnan(logits).any()
    assert np.isfinite(logits).any(axis=1).all()
    assert head.length(0) == len(TEXT)


def test_many_rows_are_as_one_by_one(pair: Pair) -> None:
    model, head = pair
    features = states(model, TEXT)
    single = [head.forward([rows(0, TEXT, features, i, i + 1, 1)]).copy() for i in range(1, len(TEXT))]
    together = head.forward([rows(1, TEXT, features, 1, len(TEXT), len(TEXT) - 1)])
    assert alike(together, np.concatenate(single))
    for first, count in ((1, 20), (3, 2), (21, 18)):
        head.release(1)
        head.forward([rows(1, TEXT, features, 1, first, 0)]) if first > 1 else None
        found = head.forward([rows(1, TEXT, features, first, first + count, 2)])
        assert alike(found, np.concatenate(single[first + count - 3 : first + count - 1]))


def test_more_rows_than_are_computed_at_once(pair: Pair) -> None:
    model, head = pair
    text = text_tokens(150, seed=4)
    features = states(model, text)
    whole = head.forward([rows(0, text, features, 1, 150, 149)]).copy()
    head.forward([rows(1, text, features, 1, 149, 0)])
    assert alike(head.forward([rows(1, text, features, 149, 150, 1)]), whole[-1:])
    head.release(0)
    assert alike(head.forward([rows(0, text, features, 1, 150, 5)]), whole[-5:])


def test_sequences_do_not_see_each_other(pair: Pair) -> None:
    model, head = pair
    texts = [TEXT[:9], text_tokens(12, seed=1), text_tokens(5, seed=2)]
    features = [states(model, text) for text in texts]
    expected = []
    for text, of in zip(texts, features, strict=True):
        expected.append(head.forward([rows(0, text, of, 1, len(text), 2)]).copy())
        head.release(0)
    for order in ((0, 1, 2), (2, 0, 1), (1, 0)):
        batch = [rows(seq, texts[seq], features[seq], 1, len(texts[seq]), 2) for seq in order]
        assert alike(head.forward(batch), np.concatenate([expected[seq] for seq in order]))
        for seq in order:
            head.release(seq)


def test_drafts_are_the_same_at_once_and_one_by_one(pair: Pair) -> None:
    model, head = pair
    texts = [TEXT[:9], text_tokens(12, seed=1), text_tokens(5, seed=2)]
    features = [states(model, text) for text in texts]
    batch = [rows(seq, texts[seq], features[seq], 1, len(texts[seq]), 1) for seq in (1, 2, 0)]
    single = []
    for one in batch:
        single += drafted(head, [one], 4)
        head.release(one.seq)
    assert drafted(head, batch, 4) == single
    assert [head.length(seq) for seq in range(SEQUENCES)] == [len(text) + 4 for text in texts]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.right])
def test_a_head_that_is_right_drafts_what_the_target_writes(pair: Pair) -> None:
    model, head = pair
    text = TEXT[:7]
    truth: list[int] = []
    row = prefill(model, 0, text)
    features = model.features().copy()
    for _ in range(6):
        truth.append(int(row.argmax()))
        row = prefill(model, 0, truth[-1:])
    batch = [rows(seq, [*text, truth[0]], features, 1, len(text) + 1, 1) for seq in range(SEQUENCES)]
    assert drafted(head, batch, 5) == [truth[1:]] * SEQUENCES


def test_truncate_drops_what_follows(pair: Pair) -> None:
    model, head = pair
    features = states(model, TEXT)
    expected = head.forward([rows(0, TEXT, features, 1, 20, 10)]).copy()
    head.truncate(0, 15)
    assert head.length(0) == 15
    assert alike(head.forward([rows(0, TEXT, features, 15, 20, 1)]), expected[-1:])
    head.truncate(0, 40)
    assert head.length(0) == 20, "never longer"
    head.truncate(0, 1)
    assert head.length(0) == 0
    assert alike(head.forward([rows(0, TEXT, features, 1, 20, 10)]), expected)


def test_the_rows_of_a_draft_leave_nothing(pair: Pair) -> None:
    model, head = pair
    features = states(model, TEXT)
    expected = head.forward([rows(1, TEXT, features, 1, 30, 20)]).copy()
    head.truncate(1, 29)
    following = drafted(head, [rows(1, TEXT, features, 29, 30, 1)], 3)
    end = 1
    for count in (9, 1, 2, 8, 8):
        drafted(head, [rows(0, TEXT, features, end, end + count, 1)], 3)
        end += count
        head.truncate(0, end)
        assert head.length(0) == end
    assert end == 29
    assert drafted(head, [rows(0, TEXT, features, 29, 30, 1)], 3) == following
    head.truncate(0, 29)
    assert alike(head.forward([rows(0, TEXT, features, 29, 30, 1)]), expected[-1:])


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
    drafted(head, [rows(seq, TEXT, features, 1, len(TEXT), 1) for seq in range(SEQUENCES)], 5)
    head.truncate(0, 5)
    head.release(1)
    assert (bytes(model.snapshot(0)), model.length(0)) == before  # type: ignore[call-overload]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.chosen])
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
    head.forward([rows(0, TEXT, features, 1, 10, 0)])
    for batch in (
        [rows(-1, TEXT, features, 1, 3, 1)],
        [rows(SEQUENCES, TEXT, features, 1, 3, 1)],
        [HeadRows(1, 1, TEXT[1:3], features[:1], 1)],
        [HeadRows(1, 0, TEXT[:2], features[:2], 1)],
        [HeadRows(1, 1, TEXT[1:2], None, 1)],  # there is no row before
        [HeadRows(0, 10, TEXT[10:11], None, 1)],  # the row before returned no logits
    ):
        with pytest.raises(BackendError):
            head.forward(batch)
        assert [head.length(seq) for seq in range(SEQUENCES)] == [10, 0, 0]
    head.forward([rows(0, TEXT, features, 10, 12, 1)])
    head.truncate(0, 12)
    with pytest.raises(BackendError):
        head.forward([HeadRows(0, 12, TEXT[12:13], None, 1)])
    if head.window != 1:
        with pytest.raises(BackendError):
            head.forward([rows(0, TEXT, features, 20, 22, 1)])
    if not head.trees:
        head.forward([rows(0, TEXT, features, 12, 14, 1)])
        with pytest.raises(BackendError):
            head.forward([HeadRows(0, 14, TEXT[14:16], None, 2, (-1, -1))])


@pytest.mark.parametrize("name", ["eagle3", "eagle3-right", "mtp", "mtp-chained", "torch", "torch-mtp"])
def test_a_full_head_is_as_before(pair: Pair) -> None:
    model, head = pair
    text = text_tokens(CONTEXT, seed=6)
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
    first = model.load_head(path, sequences=1)
    first.close()
    first.close()
    second = model.load_head(path, sequences=2)
    second.forward([rows(1, TEXT, features, 1, 5, 1)])
    model.close()
    if not isinstance(model, FakeModel):
        for head in (first, second):
            with pytest.raises(BackendError, match="closed"):
                head.forward([rows(0, TEXT, features, 1, 5, 1)])
            with pytest.raises(BackendError, match="closed"):
                head.release(0)
    second.close()
    model.close()


def test_a_closed_head_is_not_kept_by_its_model(name: str, workspace: Workspace) -> None:
    model, path = load(name, workspace)
    heads = [model.load_head(path, sequences=1) for _ in range(3)]
    kept = [ref(head) for head in heads]
    heads[0].close()
    del heads[0]
    gc.collect()
    assert [reference() is None for reference in kept] == [True, False, False]
    model.close()
    if not isinstance(model, FakeModel):
        for head in heads:
            with pytest.raises(BackendError, match="closed"):
                head.release(0)


def test_a_model_that_returns_nothing_has_no_head(workspace: Workspace) -> None:
    from foredraft.backends.llamacpp import BACKEND

    target = workspace.file("heads-plain.gguf", _llama(0.5))
    head = workspace.file("heads-plain-head.gguf", lambda path: _random()(path, target))
    for watch, path in (((), head), (("layer:1",), head), (("layer:1",), None)):
        options = replace(one_thread(workspace, CONTEXT, 1), watch=watch, probe=False)
        model = BACKEND.load(target, options)
        with pytest.raises(UnsupportedModelError):
            model.load_head(path, sequences=1)
        model.close()
