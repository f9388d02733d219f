"""Models with a recurrent state: whatever is accepted and rejected, a sequence is what its tokens make it.

The oracle computes every sequence from nothing. A rejection is taken back in both ways that there are: by
states that llama.cpp keeps, and by a checkpoint and rows that are computed again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

import gguf_hybrids
import torch_factory
from foredraft.backends import rewind
from foredraft.backends.rewind import RewindingModel
from foredraft.errors import BackendError, OutOfKVError
from foredraft.protocols import Model
from foredraft.types import Logits, Rollback, Rows
from model_cases import Workspace, fresh, one_thread, prefill, same, text_tokens
from recurrent_double import FakeRecurrentModel

CONTEXT = 192
SEQUENCES = 4
SPARE = SEQUENCES - 1
TEXT = text_tokens(24)
DRAFT = text_tokens(14, seed=1)
OTHER = text_tokens(9, seed=2)
OPERATIONS, NIGHTLY_OPERATIONS = 40, 250


def _fake(workspace: Workspace) -> Model:
    return RewindingModel(FakeRecurrentModel(bound=3, context_length=CONTEXT, sequences=SEQUENCES))


def _gguf(name: str, write: Callable[..., object], **shape: int) -> Callable[[Workspace], Model]:
    def load(workspace: Workspace) -> Model:
        from foredraft.backends.llamacpp import BACKEND

        path = workspace.file(f"{name}.gguf", lambda path: write(path, mixing=0.5, **shape))
        return BACKEND.load(path, one_thread(workspace, CONTEXT, SEQUENCES))

    return load


TORCH = ("falcon_h1", "lfm2", "mamba", "minimax", "qwen3_5", "recurrent_gemma", "rwkv", "xlstm", "zamba2")


def _torch(name: str) -> Callable[[Workspace], Model]:
    def load(workspace: Workspace) -> Model:
        from foredraft.backends.torch import BACKEND

        path = workspace.file(f"torch-{name}", lambda path: torch_factory.make_model(path, name))
        return BACKEND.load(path, one_thread(workspace, CONTEXT, SEQUENCES))

    return load


CASES: dict[str, tuple[Callable[[Workspace], Model], bool]] = {
    "fake": (_fake, True),
    "qwen35": (_gguf("qwen35", gguf_hybrids.tiny_qwen35, state=8, layers=2), True),
    "qwen35-wide-state": (_gguf("qwen35-wide-state", gguf_hybrids.tiny_qwen35), False),
    "lfm2": (_gguf("lfm2", gguf_hybrids.tiny_lfm2), True),
    "falcon-h1": (_gguf("falcon-h1", gguf_hybrids.tiny_falcon_h1), False),
    "mamba2": (_gguf("mamba2", gguf_hybrids.tiny_mamba2), False),
    **{f"torch-{name}": (_torch(name), True) for name in TORCH},
}
"""How to load it, and whether it keeps states to go back to for free."""


@pytest.fixture(scope="session")
def loaded(workspace: Workspace) -> Iterator[Callable[[str], Model]]:
    """Each case's model, loaded once."""
    models: dict[str, Model] = {}

    def load(name: str) -> Model:
        if name not in models:
            models[name] = CASES[name][0](workspace)
        return models[name]

    yield load
    for model in models.values():
        model.close()


@pytest.fixture(params=sorted(CASES))
def case(
    request: pytest.FixtureRequest, loaded: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> tuple[Model, bool]:
    """A model whose sequences are empty, and whether it keeps states."""
    monkeypatch.setattr(rewind, "MARKED_FROM", 64)  # short enough for this context
    model = loaded(request.param)
    for seq in range(SEQUENCES):
        model.release(seq)
    return model, CASES[request.param][1]


@pytest.fixture
def model(case: tuple[Model, bool]) -> Model:
    return case[0]


def test_it_says_how_it_goes_back(case: tuple[Model, bool]) -> None:
    model, keeps = case
    assert model.capabilities.rollback is Rollback.SNAPSHOT
    assert (model.capabilities.rollback_bound > 0) == keeps
    assert model.capabilities.max_rows > model.capabilities.rollback_bound + 1


def test_a_rejection_leaves_what_was_accepted(model: Model) -> None:
    for kept in (1, 2, 7, 11, 12, 13):
        model.release(0)
        prefill(model, 0, TEXT)
        model.forward([Rows(0, len(TEXT), DRAFT, len(DRAFT))])
        model.truncate(0, len(TEXT) + kept)
        free = len(DRAFT) - kept <= model.capabilities.rollback_bound
        assert (model.length(0), model.to_recompute(0)) == (len(TEXT) + kept, 0 if free else kept)
        held = [*TEXT, *DRAFT[:kept]]
        assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, [*held, *OTHER])), kept
        assert same(model, prefill(model, 0, TEXT), fresh(model, SPARE, [*held, *OTHER, *TEXT])), kept


def test_a_draft_can_follow_a_rejection(model: Model) -> None:
    prefill(model, 0, TEXT)
    held = list(TEXT)
    for kept in (2, 1, 5, 14, 3):
        rows = model.forward([Rows(0, len(held), DRAFT, len(DRAFT))]).copy()
        assert same(model, rows[kept - 1], fresh(model, SPARE, [*held, *DRAFT[:kept]]))
        held += DRAFT[:kept]
        model.truncate(0, len(held))
    assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, [*held, *OTHER]))


def test_what_went_before_the_draft_stays(model: Model) -> None:
    text = text_tokens(model.capabilities.rollback_bound + 9)
    prefill(model, 0, text)
    for length in (1, len(text) - model.capabilities.rollback_bound - 1):
        with pytest.raises(BackendError):
            model.truncate(0, length)
    assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, [*text, *OTHER]))
    model.truncate(0, 0)
    assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, OTHER))


def test_a_full_context_changes_nothing(model: Model) -> None:
    prefill(model, 0, text_tokens(CONTEXT - len(DRAFT)))
    model.forward([Rows(0, CONTEXT - len(DRAFT), DRAFT, len(DRAFT))])
    held = [*text_tokens(CONTEXT - len(DRAFT)), *DRAFT[:1]]
    model.truncate(0, len(held))
    with pytest.raises(OutOfKVError):
        model.forward([Rows(0, len(held), [*DRAFT, *DRAFT], len(DRAFT))])
    assert model.length(0) == len(held)
    assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, [*held, *OTHER]))


def test_there_are_only_so_many_sequences(model: Model) -> None:
    for seq in (-1, SEQUENCES, 1000):
        with pytest.raises(BackendError):
            model.forward([Rows(0, 0, TEXT, 1), Rows(seq, 0, TEXT, 1)])
        assert [model.length(seq) for seq in range(SEQUENCES)] == [0] * SEQUENCES


def test_a_long_prompt_can_be_gone_back_to(model: Model) -> None:
    prompt = text_tokens(100, seed=3)
    prefill(model, 0, prompt)
    prefill(model, 0, OTHER)
    length = model.reachable(0, len(prompt) - 2)
    assert 80 < length < len(prompt)
    model.fork(0, 1, length)
    model.truncate(0, length)
    for seq in range(2):
        assert same(model, prefill(model, seq, OTHER), fresh(model, SPARE, [*prompt[:length], *OTHER]))


class Player:
    """Random operations on a model, and on lists of tokens the same."""

    def __init__(self, model: Model, seed: int) -> None:
        self.model = model
        self.random = random.Random(seed)
        self.held: list[list[int]] = [[] for _ in range(SPARE)]
        self.snapshots: list[tuple[object, list[int]]] = []

    def play(self) -> None:
        rare = [self.save, self.bring_back, self.copy, self.cut, self.drop]
        self.random.choice([self.verify] * 6 + [self.compute] * 2 + rare)()
        for seq, held in enumerate(self.held):
            assert self.model.length(seq) == len(held)
            if len(held) > CONTEXT - 30:
                self.model.release(seq)
                held.clear()

    def tokens(self, most: int) -> list[int]:
        return text_tokens(self.random.randint(1, most), seed=self.random.randrange(10**6))

    def verify(self) -> None:
        """Drafts of several sequences in one forward, of which some tokens are accepted."""
        parts = self.random.sample(range(SPARE), self.random.randint(1, SPARE))
        batch: list[Rows] = []
        for seq in parts:
            tokens = self.tokens(14)
            logits = self.random.choice([len(tokens), len(tokens), 1])
            batch.append(Rows(seq, len(self.held[seq]), tokens, logits))
        found = self.model.forward(batch).copy()
        first, accepted = 0, list[Logits]()
        for rows in batch:
            held, tokens = self.held[rows.seq], list(rows.tokens)
            kept = len(tokens) - rows.logits + self.random.randint(1, rows.logits)
            row = found[first + rows.logits - 1 - (len(tokens) - kept)].copy()
            first += rows.logits
            held += tokens[:kept]
            self.model.truncate(rows.seq, len(held))
            accepted.append(row)
        for rows, row in zip(batch, accepted, strict=True):
            assert same(self.model, row, fresh(self.model, SPARE, self.held[rows.seq]))

    def compute(self) -> None:
        seq, tokens = self.random.randrange(SPARE), self.tokens(90)
        if len(self.held[seq]) + len(tokens) > CONTEXT:
            return
        row = prefill(self.model, seq, tokens)
        self.held[seq] += tokens
        assert same(self.model, row, fresh(self.model, SPARE, self.held[seq]))

    def save(self) -> None:
        seq = self.random.randrange(SPARE)
        self.snapshots = [*self.snapshots[-2:], (self.model.snapshot(seq), list(self.held[seq]))]

    def bring_back(self) -> None:
        if self.snapshots:
            seq = self.random.randrange(SPARE)
            snapshot, held = self.random.choice(self.snapshots)
            self.model.restore(seq, snapshot)
            self.held[seq] = list(held)

    def copy(self) -> None:
        src, dst = self.random.sample(range(SPARE), 2)
        length = self.model.reachable(src, self.random.randint(0, len(self.held[src])))
        self.model.fork(src, dst, length)
        self.held[dst] = self.held[src][:length]

    def cut(self) -> None:
        seq = self.random.randrange(SPARE)
        length = self.model.reachable(seq, self.random.randint(0, len(self.held[seq])))
        self.model.truncate(seq, length)
        del self.held[seq][length:]

    def drop(self) -> None:
        seq = self.random.randrange(SPARE)
        self.model.release(seq)
        self.held[seq] = []


def test_after_any_operations_every_sequence_is_as_if_computed_afresh(model: Model, is_nightly: bool) -> None:
    player = Player(model, seed=5)
    for _ in range(NIGHTLY_OPERATIONS if is_nightly else OPERATIONS):
        player.play()
