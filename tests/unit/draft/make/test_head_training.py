"""Training a head: what it learns, how it ends, and that it goes on after a kill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from draft_make_cases import NumberTarget
from foredraft.draft.make import training
from foredraft.draft.make.parts import Part
from foredraft.draft.make.store import Examples
from foredraft.draft.make.training import Acceptance, lower_precision
from foredraft.errors import CapacityError


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
    assert after.rows == len(examples.choosing)


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
        examples.parts,
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
    assert (second.progress.falling_from or 0.0) > first.progress.elapsed
    assert first.use_best().joint[0] < 0.5 < 0.9 < second.use_best().joint[0]


def test_a_training_that_gained_no_more_does_not_go_on_in_the_same_time(
    target: NumberTarget, examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_RISE", 100.0)
    first = target.trainer(examples, batches=300)
    first.run(lambda: None, lambda: first.save(tmp_path / "checkpoint.pt"))
    assert first.progress.elapsed < 0.8 * 300
    second = target.trainer(examples, batches=300)
    second.resume(tmp_path / "checkpoint.pt")
    assert second.progress.done


def test_at_the_end_the_best_weights_are_kept_and_no_more(
    target: NumberTarget, examples: Examples, tmp_path: Path
) -> None:
    sizes: list[int] = []

    def save() -> None:
        trainer.save(tmp_path / "checkpoint.pt")
        sizes.append((tmp_path / "checkpoint.pt").stat().st_size)

    trainer = target.trainer(examples, batches=60)
    trainer.run(lambda: None, save, every=20.0)
    assert sizes[-1] < 0.4 * max(sizes)
    weights = sum(tensor.nbytes for tensor in trainer.network.state_dict().values())
    assert sizes[-1] < weights + 50_000


def test_the_best_weights_are_measured_again_on_other_answers(
    target: NumberTarget, examples: Examples, tmp_path: Path
) -> None:
    """What was measured on others is neither compared nor shown."""
    first = target.trainer(examples, batches=300)
    first.run(lambda: None, lambda: first.save(tmp_path / "checkpoint.pt"))
    tokens = examples.tokens.copy()
    tokens[examples.parts == Part.CHOOSING] = 0
    second = target.trainer(replace(examples, tokens=tokens), batches=300)
    second.resume(tmp_path / "checkpoint.pt")
    assert first.best is not None
    assert second.best is not None
    assert first.best[0].joint[0] > 0.9
    assert second.best[0].joint[0] < 0.2
    assert second.best[0] == second.use_best() == second.acceptance()
    assert not second.progress.measured


def test_the_last_figure_is_of_answers_that_nothing_was_chosen_on(
    target: NumberTarget, examples: Examples
) -> None:
    tokens = examples.tokens.copy()
    tokens[examples.parts == Part.FINAL] = 0
    trainer = target.trainer(replace(examples, tokens=tokens), batches=300)
    trainer.run(lambda: None, lambda: None)
    assert trainer.use_best().joint[0] > 0.9
    final = trainer.acceptance(final=True)
    assert final.joint[0] < 0.2
    assert final.rows == len(examples.final)


def test_a_head_of_other_tokens_is_not_gone_on_with(
    target: NumberTarget, examples: Examples, tmp_path: Path
) -> None:
    """Though it is as large."""
    target.trainer(examples).save(tmp_path / "checkpoint.pt")
    other = target.trainer(examples)
    other._vocabulary = other._vocabulary.flip(0)
    with pytest.raises(ValueError, match="other tokens"):
        other.resume(tmp_path / "checkpoint.pt")


def test_a_full_disk_is_said(
    target: NumberTarget, examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own error for it is a RuntimeError about a file's position."""

    def full(state: object, path: Path) -> None:
        path.write_bytes(b"some")
        raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CapacityError, match=r"cannot be written .* [MG]B are free"):
        target.trainer(examples).save(tmp_path / "checkpoint.pt")
    assert list(tmp_path.glob("*checkpoint*")) == []


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
