"""Training a head: what it learns, how it ends, and that it goes on after a kill."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from draft_make_cases import NumberTarget
from foredraft.draft.make.store import Examples
from foredraft.draft.make.training import Acceptance, lower_precision


@pytest.fixture
def target() -> NumberTarget:
    return NumberTarget()


@pytest.fixture
def examples(target: NumberTarget, tmp_path: Path) -> Examples:
    return target.examples(tmp_path / "rows")


def test_what_depends_on_the_last_token_is_learned_at_every_depth(
    target: NumberTarget, examples: Examples
) -> None:
    trainer = target.trainer(examples)
    before = trainer.acceptance()
    trainer.run(lambda: None, lambda: None)
    after = trainer.use_best()
    assert before.joint[0] < 0.5
    assert min(after.by_depth) > 0.95, after
    assert after.rows == len(examples.measuring)


def test_of_a_text_without_rules_nothing_is_learned_and_it_ends_early(
    target: NumberTarget, tmp_path: Path
) -> None:
    examples = target.examples(tmp_path / "rows")
    rng = np.random.default_rng(5)
    noise = Examples(
        examples.features,
        rng.integers(0, 48, len(examples.tokens)).astype(np.int32),
        rng.integers(0, 48, examples.likely.shape).astype(np.int32),
        examples.scores,
        examples.left,
        examples.held_out,
        examples.greedy,
    )
    trainer = target.trainer(noise, batches=600)
    trainer.run(lambda: None, lambda: None)
    assert trainer.use_best().joint[0] < 0.2
    assert trainer.progress.done
    assert trainer.progress.elapsed < 450


def test_it_keeps_to_its_budget(target: NumberTarget, examples: Examples) -> None:
    trainer = target.trainer(examples, batches=60)
    trainer.run(lambda: None, lambda: None)
    assert 60 <= trainer.progress.elapsed < 70


class KilledError(Exception):
    pass


def test_after_a_kill_it_goes_on_from_the_last_checkpoint(
    target: NumberTarget, examples: Examples, tmp_path: Path
) -> None:
    file = tmp_path / "checkpoint.pt"

    first = target.trainer(examples, batches=200)

    def save() -> None:
        first.save(file)
        if first.progress.batches > 20:
            raise KilledError

    with pytest.raises(KilledError):
        first.run(lambda: None, save, every=15.0)
    second = target.trainer(examples, batches=200)
    second.resume(file)
    assert second.progress == first.progress
    for mine, theirs in zip(second.network.parameters(), first.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    second.run(lambda: None, lambda: second.save(file))
    assert second.progress.batches > first.progress.batches
    assert second.progress.done
    assert not list(tmp_path.glob(".checkpoint*"))
    third = target.trainer(examples, batches=200)
    third.resume(file)
    assert third.progress.done
    assert third.best is not None
    assert third.best[0] == second.use_best()


def test_with_more_time_a_finished_training_goes_on(
    target: NumberTarget, examples: Examples, tmp_path: Path
) -> None:
    first = target.trainer(examples, batches=40)
    first.run(lambda: None, lambda: first.save(tmp_path / "checkpoint.pt"))
    second = target.trainer(examples, batches=300)
    second.resume(tmp_path / "checkpoint.pt")
    assert not second.progress.done
    second.run(lambda: None, lambda: None)
    assert second.use_best().length >= first.use_best().length


def test_a_damaged_checkpoint_is_refused(target: NumberTarget, examples: Examples, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    trainer = target.trainer(examples)
    trainer.save(file)
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises((RuntimeError, ValueError, EOFError, OSError)):
        target.trainer(examples).resume(file)


def test_acceptance_by_depth_is_that_of_tokens_whose_ancestors_are_right() -> None:
    found = Acceptance((0.5, 0.25, 0.0), 8)
    assert found.by_depth == (0.5, 0.5, 0.0)
    assert found.length == 0.75
    assert Acceptance((0.0, 0.0, 0.0), 8).by_depth == (0.0, 0.0, 0.0)


def test_precision_is_lowered_only_where_that_is_faster() -> None:
    with lower_precision("cpu")():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype in (torch.float32, torch.bfloat16)
