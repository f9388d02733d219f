"""The batch-invariance probe: what it reports is what a direct comparison shows, and it is measured once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import gguf_factory
from foredraft.backends.comparison import MOST_ROWS
from foredraft.backends.llamacpp import BACKEND, probe
from foredraft.backends.llamacpp.model import UNTILED_ROWS, LlamaCppModel
from foredraft.backends.probe import MOST_TRIES, Verdict
from foredraft.config import ModelOptions
from foredraft.protocols import Model
from foredraft.testing import FakeModel
from foredraft.types import Logits, Rows

TRAINED = 2048


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


def tiny(folder: Path, weights: gguf_factory.WeightType = "q8_0", **options: Any) -> Path:
    path = folder / f"{weights}-{options.get('seed', 0)}.gguf"
    if not path.exists():
        gguf_factory.tiny_llama(path, weight_type=weights, vocab=300, ctx_train=TRAINED, **options)
    return path


def load(path: Path, **options: Any) -> Model:
    return BACKEND.load(
        path, ModelOptions(**{"threads": 1, "gpu_layers": 0, "context_length": 640, **options})
    )


# --- what it reports is true ---------------------------------------------------------------------------


def invariant(model: Model, depth: int, sizes: Sequence[int]) -> bool:
    """Whether rows in batches of these sizes are bit for bit what they are one by one, at that depth."""
    tokens = [int(token) for token in np.random.default_rng(1).integers(3, 300, depth + max(sizes))]
    model.release(0)
    for start in range(0, depth, 128):
        model.forward([Rows(0, start, tokens[start : min(start + 128, depth)], 0)])
    single = np.stack(
        [model.forward([Rows(0, depth + i, [tokens[depth + i]], 1)])[0].copy() for i in range(max(sizes))]
    )
    for size in sizes:
        model.truncate(0, depth)
        together = model.forward([Rows(0, depth, tokens[depth : depth + size], size)])
        if not np.array_equal(together, single[:size]):
            return False
    return True


@pytest.mark.parametrize("weights", ["q8_0", "q4_0", "f16", "f32"])
@pytest.mark.parametrize("kv_type", ["bf16/f16", "f16"])
def test_the_note_agrees_with_a_direct_comparison(
    folder: Path, weights: gguf_factory.WeightType, kv_type: str
) -> None:
    model = load(tiny(folder, weights), kv_type=kv_type)
    sizes = [size for size in (2, 3, 5, 8, 16, 31, 63) if size <= model.capabilities.max_rows]
    seen = all(invariant(model, depth, sizes) for depth in (3, 100, 505, 560))
    capabilities = model.capabilities
    assert capabilities.batch_invariant == seen
    assert ("bit-identical" in capabilities.invariance_note) == seen
    assert ("depends on the batch size" in capabilities.invariance_note) == (not seen)
    model.close()


def test_quantised_weights_with_the_default_kv_types_are_invariant(folder: Path) -> None:
    model = load(tiny(folder))
    assert model.info.settings["kv_type"] in ("bf16/f16", "bf16/bf16")
    assert model.capabilities.batch_invariant
    assert model.capabilities.max_rows >= UNTILED_ROWS
    model.close()


class Rounding(FakeModel):
    """Logits that are a little different in batches of at least `size` rows, or beside another sequence."""

    def __init__(self, size: int, *, beside: bool = False, **options: Any) -> None:
        super().__init__(**{"max_rows": 200, "context_length": 1000, **options})
        self.size, self.beside = size, beside

    def forward(self, batch: Sequence[Rows]) -> Logits:
        logits = super().forward(batch)
        large = any(rows.logits >= self.size for rows in batch)
        return logits + np.float32(1e-6) if large or (self.beside and len(batch) > 1) else logits


def measure(model: FakeModel) -> tuple[int, str]:
    """The probe asks for nothing that is not in the contract."""
    verdict = probe.measure(cast("LlamaCppModel", model), ModelOptions())
    return verdict.rows, verdict.note


@pytest.mark.parametrize("size", [2, 3, 8, 16, 33])
def test_a_model_whose_logits_depend_on_the_batch_is_not_exact(size: int) -> None:
    rows, note = measure(Rounding(size))
    assert rows == 1
    assert f"from {size} rows on" in note


def test_a_difference_beyond_the_rows_of_a_draft_only_limits_them() -> None:
    rows, note = measure(Rounding(100))
    assert rows == UNTILED_ROWS
    assert "up to 63 rows are bit-identical" in note


def test_a_model_that_another_sequence_disturbs_is_not_exact() -> None:
    assert measure(Rounding(1000, beside=True))[0] == 1
    assert measure(Rounding(1000, beside=True, sequences=1))[0] == MOST_ROWS


def test_an_exact_model_is_compared_at_three_depths_and_left_empty() -> None:
    model = FakeModel(max_rows=200, context_length=1000)
    rows, note = measure(model)
    assert rows == MOST_ROWS
    assert "8, 250 and 506 tokens" in note
    assert [model.length(seq) for seq in range(4)] == [0] * 4


def test_a_difference_far_into_the_context_is_found() -> None:
    class Splitting(FakeModel):
        """As llama.cpp with K and V both f16: other arithmetic for single rows past 512 cells."""

        def forward(self, batch: Sequence[Rows]) -> Logits:
            logits = super().forward(batch)
            split = any(rows.start >= 512 and rows.logits == 1 for rows in batch)
            return logits + np.float32(1e-6) if split else logits

    for context, exact in ((500, True), (528, False), (540, False), (1000, False)):
        rows, _ = measure(Splitting(max_rows=200, context_length=context))
        assert (rows > 1) == exact, f"a context of {context}"


# --- short contexts and batches ------------------------------------------------------------------------


@pytest.mark.parametrize("context", [1, 16])
def test_a_context_too_short_to_compare_anything_promises_nothing(folder: Path, context: int) -> None:
    model = load(tiny(folder), context_length=context)
    assert not model.capabilities.batch_invariant
    assert "not measured" in model.capabilities.invariance_note
    model.close()


@pytest.mark.parametrize("context", [17, 20, 64, 200])
def test_a_short_context_is_compared_as_far_as_it_goes(folder: Path, context: int) -> None:
    model = load(tiny(folder), context_length=context)
    assert model.capabilities.batch_invariant
    assert model.capabilities.max_rows <= context
    assert "530" not in model.capabilities.invariance_note
    model.close()


@pytest.mark.parametrize(("batch", "sequences"), [(1, 1), (2, 1), (2, 2), (3, 2), (7, 4)])
def test_small_batches_can_be_probed(folder: Path, batch: int, sequences: int) -> None:
    model = load(tiny(folder), batch=batch, sequences=sequences, context_length=64)
    assert model.capabilities.max_rows <= batch
    assert model.capabilities.batch_invariant == (batch > 1)
    model.close()


# --- measured once -------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of the model, for every measurement."""
    names: list[str] = []
    measure = probe.measure

    def watching(model: LlamaCppModel, options: ModelOptions, window: int, image: None) -> Verdict:
        names.append(model.info.path)
        return measure(model, options, window, image)

    monkeypatch.setattr(probe, "measure", watching)
    return names


def test_the_second_load_reads_the_result(folder: Path, tmp_path: Path, measured: list[str]) -> None:
    notices: list[str] = []
    loads = [load(tiny(folder), cache_dir=tmp_path, notice=notices.append) for _ in range(2)]
    assert len(measured) == len(notices) == 1
    assert loads[0].capabilities == loads[1].capabilities
    for model in loads:
        model.close()


@pytest.mark.parametrize(
    "change",
    [
        {"kv_type": "f16"},
        {"context_length": 128},
        {"sequences": 2},
        {"batch": 64},
        {"ubatch": 64},
        {"flash_attention": "off"},
        {"seed": 1},
    ],
    ids=str,
)
def test_another_model_or_setting_is_measured_anew(
    folder: Path, tmp_path: Path, measured: list[str], change: dict[str, Any]
) -> None:
    load(tiny(folder), cache_dir=tmp_path).close()
    options = {name: value for name, value in change.items() if name != "seed"}
    load(tiny(folder, seed=change.get("seed", 0)), cache_dir=tmp_path, **options).close()
    assert len(measured) == 2


def test_another_version_of_foredraft_measures_anew(
    folder: Path, tmp_path: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may compute in another way."""
    load(tiny(folder), cache_dir=tmp_path).close()
    monkeypatch.setattr("foredraft.backends.probe.version", lambda _name: "1000")
    load(tiny(folder), cache_dir=tmp_path).close()
    assert len(measured) == 2


def test_nothing_is_written_without_a_cache(folder: Path, tmp_path: Path, measured: list[str]) -> None:
    for _ in range(2):
        load(tiny(folder), cache_dir=None).close()
    assert len(measured) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_thorough_result_is_measured_anew_and_used_from_then_on(
    folder: Path, tmp_path: Path, measured: list[str]
) -> None:
    load(tiny(folder), cache_dir=tmp_path).close()
    lines: list[str] = []
    thorough = load(tiny(folder), cache_dir=tmp_path, probe="thorough", notice=lines.append)
    assert any("thoroughly" in line for line in lines)
    later = load(tiny(folder), cache_dir=tmp_path)
    assert len(measured) == 2
    assert later.capabilities == thorough.capabilities
    assert "(6 texts, " in later.capabilities.invariance_note
    for model in (thorough, later):
        model.close()


class Verdicts:
    """Stands for measuring: says the verdicts in turn."""

    def __init__(self, *verdicts: Verdict) -> None:
        self.left = list(verdicts)

    def __call__(self, *_: object) -> Verdict:
        return self.left.pop(0)


def load_with(monkeypatch: pytest.MonkeyPatch, folder: Path, cache: Path, *verdicts: Verdict) -> list[int]:
    """The rows that each of so many loads gets."""
    said, found = Verdicts(*verdicts), []
    monkeypatch.setattr(probe, "measure", said)
    while said.left:
        model = load(tiny(folder), cache_dir=cache)
        found.append(model.capabilities.max_rows)
        model.close()
    return found


def test_a_quick_result_does_not_replace_a_thorough_one_made_meanwhile(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thorough = Verdict(129, "thorough", thorough=True)

    def meanwhile(*_: object) -> Verdict:
        monkeypatch.setattr(probe, "measure", Verdicts(thorough))
        load(tiny(folder), cache_dir=tmp_path, probe="thorough").close()
        return Verdict(63, "quick")

    monkeypatch.setattr(probe, "measure", meanwhile)
    for _ in range(2):
        model = load(tiny(folder), cache_dir=tmp_path)
        assert (model.capabilities.max_rows, model.capabilities.invariance_note) == (129, "thorough")
        model.close()


def test_a_result_that_was_cut_short_is_made_again_a_few_times(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = Verdict(16, "cut", cut=True)
    assert load_with(monkeypatch, folder, tmp_path, *[cut] * MOST_TRIES) == [16] * MOST_TRIES
    monkeypatch.setattr(probe, "measure", Verdicts())
    load(tiny(folder), cache_dir=tmp_path).close()


@pytest.mark.parametrize(
    ("second", "rows"),
    [
        (Verdict(129, "whole"), 129),
        (Verdict(8, "even shorter", cut=True), 16),
        (Verdict(1, "not exact"), UNTILED_ROWS),
    ],
    ids=str,
)
def test_what_compared_more_or_found_a_difference_is_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: Verdict, rows: int
) -> None:
    cut = Verdict(16, "cut", cut=True)
    assert load_with(monkeypatch, folder, tmp_path, cut, second) == [16, rows]


def test_what_left_nothing_out_is_kept_though_it_had_fewer_rows(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = Verdict(129, "not past 506", cut=True), Verdict(63, "deeper")
    assert load_with(monkeypatch, folder, tmp_path, *verdicts) == [129, 63]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"rows": 5}', '{"rows": "many", "note": ""}', "\0"])
def test_a_damaged_result_is_ignored_with_a_warning_and_replaced(
    folder: Path, tmp_path: Path, measured: list[str], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    load(tiny(folder), cache_dir=tmp_path).close()
    [file] = [path for path in tmp_path.rglob("*.json") if not path.name.startswith("opened-")]
    file.write_text(damage)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            load(tiny(folder), cache_dir=tmp_path).close()
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert file.name in warning.getMessage()
    assert len(measured) == 2


def test_a_cache_that_cannot_be_written_is_a_warning_only(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    with caplog.at_level(logging.WARNING):
        model = load(tiny(folder), cache_dir=blocked)
    assert model.capabilities.batch_invariant
    assert "Cannot save" in caplog.text
    model.close()


def test_the_probe_can_be_left_out(folder: Path, measured: list[str]) -> None:
    model = load(tiny(folder), probe=False)
    assert (model.capabilities.batch_invariant, measured) == (False, [])
    assert model.capabilities.invariance_note == "not measured"
    model.close()
