"""Random operations on the KV cache, after each of which it holds what it should.

The oracle is a second model of the same weights that computes every sequence from nothing: after an
operation, a probe token's logits must equal its, bit for bit where the model promises that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from foredraft.errors import OutOfKVError
from foredraft.protocols import Model
from foredraft.types import Logits, Rows
from model_cases import CASES, Workspace, fresh, prefill, same, text_tokens

CONTEXT = 64
SEQUENCES = 4
OPERATIONS, NIGHTLY_OPERATIONS = 600, 10_000
STEPS = 50
PROBE = 77

seqs = st.integers(0, SEQUENCES - 1)
chains = st.builds(text_tokens, st.integers(1, 9), st.integers(0, 999))
shares = st.sampled_from([1.0, 0.9, 0.7, 0.5, 0.2, 0.0])
"""Mostly much is kept: errors hide in empty sequences."""
probes = st.sampled_from([False, False, True])
"""Whether to look at once. A probe is a forward, which may hide what several operations in a row do."""
batches = st.dictionaries(seqs, chains, min_size=1, max_size=SEQUENCES)


class KVMachine(RuleBasedStateMachine):
    """Does to a model and to lists of tokens the same things. `model` and `oracle` are set by a subclass."""

    model: Model
    oracle: Model
    operations = 0
    known: dict[tuple[int, ...], Logits]

    def __init__(self) -> None:
        super().__init__()
        self.held: list[list[int]] = [[] for _ in range(SEQUENCES)]
        self.snapshots: list[tuple[list[int], object]] = []

    @initialize(lengths=st.lists(st.integers(1, 40), min_size=SEQUENCES, max_size=SEQUENCES))
    def fill(self, lengths: list[int]) -> None:
        for seq, length in enumerate(lengths):
            self.model.release(seq)
            self.held[seq] = text_tokens(length, seed=seq)
            prefill(self.model, seq, self.held[seq])

    def nonempty(self, pick: int) -> int:
        """One of the sequences that hold something: on empty ones most operations do nothing."""
        filled = [seq for seq in range(SEQUENCES) if self.held[seq]]
        return filled[pick % len(filled)]

    def any_filled(self) -> bool:
        return any(self.held)

    def touch(self, *changed: int) -> None:
        """Count the operation and look at the sequences it concerned."""
        type(self).operations += 1
        for seq in changed:
            self.probe(seq)

    def probe(self, seq: int) -> None:
        """Leaves the sequence as it was, one cell being written and taken back, if there is room for it."""
        held = self.held[seq]
        if len(held) == CONTEXT:
            return
        row = self.model.forward([Rows(seq, len(held), (PROBE,), 1)])[0].copy()
        self.model.truncate(seq, len(held))
        assert same(self.model, row, self.expect([*held, PROBE])), f"sequence {seq} is not {held}"

    def expect(self, text: Sequence[int]) -> Logits:
        key = tuple(text)
        if key not in self.known:
            self.known[key] = fresh(self.oracle, 0, text)
        return self.known[key]

    @rule(batch=batches, probed=probes)
    def append(self, batch: dict[int, list[int]], probed: bool) -> None:
        rows = [Rows(seq, len(self.held[seq]), chain, 1) for seq, chain in batch.items()]
        if any(row.start + len(row.tokens) > CONTEXT for row in rows):
            with pytest.raises(OutOfKVError):
                self.model.forward(rows)
            return self.touch(*batch)
        logits = self.model.forward(rows).copy()
        for (seq, chain), row in zip(batch.items(), logits, strict=True):
            self.held[seq].extend(chain)
            assert same(self.model, row, self.expect(self.held[seq]))
        return self.touch(*(batch if probed else ()))

    @precondition(any_filled)
    @rule(pick=seqs, share=shares, probed=probes)
    def truncate(self, pick: int, share: float, probed: bool) -> None:
        seq = self.nonempty(pick)
        length = int(share * len(self.held[seq]))
        self.model.truncate(seq, length)
        del self.held[seq][length:]
        self.touch(*([seq] if probed else ()))

    @precondition(any_filled)
    @rule(pick=seqs, dst=seqs, share=shares, probed=probes)
    def fork(self, pick: int, dst: int, share: float, probed: bool) -> None:
        src = self.nonempty(pick)
        length = int(share * len(self.held[src]))
        self.model.fork(src, dst, length)
        self.held[dst] = self.held[src][:length]
        self.touch(*((dst, src) if probed else ()))

    @rule(src=seqs, dst=seqs)
    def fork_nothing(self, src: int, dst: int) -> None:
        self.model.fork(src, dst, 0)
        self.held[dst] = []
        self.touch()

    @rule(seq=seqs)
    def snapshot(self, seq: int) -> None:
        self.snapshots = [*self.snapshots[-3:], (list(self.held[seq]), self.model.snapshot(seq))]
        self.touch()

    def any_saved(self) -> bool:
        return bool(self.snapshots)

    @precondition(any_saved)
    @rule(seq=seqs, index=seqs, probed=probes)
    def restore(self, seq: int, index: int, probed: bool) -> None:
        held, snapshot = self.snapshots[index % len(self.snapshots)]
        self.model.restore(seq, snapshot)
        self.held[seq] = list(held)
        self.touch(*([seq] if probed else ()))

    @precondition(any_filled)
    @rule(pick=seqs)
    def release(self, pick: int) -> None:
        seq = self.nonempty(pick)
        self.model.release(seq)
        self.held[seq] = []
        self.touch()

    @invariant()
    def lengths_agree(self) -> None:
        assert [self.model.length(seq) for seq in range(SEQUENCES)] == [len(held) for held in self.held]

    def teardown(self) -> None:
        for seq in range(SEQUENCES):
            if self.model.length(seq) == len(self.held[seq]):
                self.probe(seq)


def machine(model: Model, oracle: Model) -> type[KVMachine]:
    class Machine(KVMachine):
        pass

    Machine.model, Machine.oracle, Machine.known = model, oracle, {}
    return Machine


@pytest.fixture(params=sorted(CASES))
def load(request: pytest.FixtureRequest, workspace: Workspace) -> Callable[[int], Model]:
    return lambda sequences: CASES[request.param](workspace, CONTEXT, sequences)


def test_random_operations_leave_every_sequence_as_if_computed_afresh(
    load: Callable[[int], Model], is_nightly: bool
) -> None:
    operations = NIGHTLY_OPERATIONS if is_nightly else OPERATIONS
    model, oracle = load(SEQUENCES), load(1)
    made = machine(model, oracle)
    settings = hypothesis.settings(
        max_examples=operations // 30,  # examples may end early
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(made, settings=settings)
    finally:
        model.close()
        oracle.close()
    assert made.operations >= operations
