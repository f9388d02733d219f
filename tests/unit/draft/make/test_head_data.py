"""What a head learns from: answers, rows of features, the vocabulary; kept whatever happens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from draft_make_cases import LENGTH, WIDTH, NumberTarget
from foredraft.draft.make import workfolder
from foredraft.draft.make.answers import Answer, AnswerFile
from foredraft.draft.make.features import likeliest, read_rows
from foredraft.draft.make.parts import Part, parts_of
from foredraft.draft.make.sizes import choose_vocabulary, count_tokens, layers_for, most_tokens, sizes_for
from foredraft.draft.make.store import TOP, RowStore
from foredraft.draft.make.workfolder import WorkFolder, drop_rows
from foredraft.errors import CapacityError, ConfigError
from foredraft.testing import FakeModel, markov_logits


def some(count: int) -> list[Answer]:
    return [Answer("own", 0.0, (1, number), (5, 6, 7, number)) for number in range(count)]


# --- answers -------------------------------------------------------------------------------------------


def test_answers_are_read_back(tmp_path: Path) -> None:
    file = AnswerFile(tmp_path / "answers.jsonl")
    file.add(some(3))
    file.add(some(5)[3:])
    again = AnswerFile(tmp_path / "answers.jsonl")
    assert again.answers == file.answers == some(5)
    assert again.tokens == 20
    assert (1, 4) in again.prompts()


def test_a_line_that_a_kill_cut_short_is_dropped_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    AnswerFile(path).add(some(3))
    path.write_bytes(path.read_bytes()[:-9])
    file = AnswerFile(path)
    assert file.answers == some(2)
    file.add(some(3)[2:])
    assert AnswerFile(path).answers == some(3)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"id": 1}\n')
    with pytest.raises(ConfigError, match="line 1"):
        AnswerFile(path)


# --- what they are for ---------------------------------------------------------------------------------


def test_all_answers_to_a_prompt_are_on_one_side() -> None:
    prompts = [(number,) for number in range(2000)]
    parts = parts_of(prompts, prompts)
    assert 100 < parts.count(Part.FINAL) < 240
    assert 40 < parts.count(Part.CHOOSING) < 120
    assert parts_of(prompts[::-1], prompts) == parts[::-1]


@pytest.mark.parametrize("first", range(0, 60, 3))
def test_a_few_prompts_have_every_part(first: int) -> None:
    assert set(parts_of([(first,), (first + 1,), (first + 2,)], [(first + n,) for n in range(3)])) == {*Part}


def test_prompts_that_come_later_never_turn_learning_into_measuring() -> None:
    """Nor what the best head was chosen on into what it is measured on in the end."""
    prompts = [(number, 7) for number in range(80)]
    before = [Part.FINAL] * len(prompts)
    for count in range(1, len(prompts) + 1):
        now = parts_of(prompts[:count], prompts[:count])
        assert all(one <= earlier for one, earlier in zip(now[:-1], before, strict=False))
        before[:count] = now
    assert before.count(Part.FINAL) > 1


def test_only_answers_that_have_room_for_a_draft_are_measured_on(tmp_path: Path) -> None:
    target = NumberTarget()
    store = RowStore(tmp_path, 3 * WIDTH)
    for number in range(12):
        store.add(None if number < 9 else target.answer(), greedy=True)
    parts = store.parts([(number,) for number in range(14)])
    assert set(parts[9:12]) == {*Part}
    assert {*parts[:9], *parts[12:]} == {Part.LEARNING}


# --- rows ----------------------------------------------------------------------------------------------


def test_rows_are_read_back_with_what_follows_them(tmp_path: Path) -> None:
    target = NumberTarget()
    store = RowStore(tmp_path, 3 * WIDTH)
    first, second = target.answer(), target.answer()
    store.add(first, greedy=True)
    store.add(None, greedy=True)
    store.add(second, greedy=False)
    store.add(first, greedy=True)
    found = RowStore(tmp_path, 3 * WIDTH).read([Part.LEARNING, Part.FINAL, Part.FINAL, Part.CHOOSING])
    assert np.array_equal(found.tokens, np.concatenate([first.tokens, second.tokens, first.tokens]))
    assert np.allclose(found.features[LENGTH : 2 * LENGTH], second.features, atol=2e-3)
    assert found.left.tolist() == [*range(LENGTH - 1, -1, -1)] * 3
    assert found.training.tolist() == [*range(LENGTH - 1)]
    assert found.final.tolist() == [*range(LENGTH, 2 * LENGTH - 3)]
    assert found.choosing.tolist() == [*range(2 * LENGTH, 3 * LENGTH - 3)]


def test_what_a_kill_left_of_an_answer_is_cut_off(tmp_path: Path) -> None:
    target = NumberTarget()
    store = RowStore(tmp_path, 3 * WIDTH)
    rows = [target.answer() for _ in range(3)]
    store.add(rows[0], greedy=True)
    with (tmp_path / "features.f16").open("ab") as file:
        file.write(b"\1" * 1000)
    with (tmp_path / "tokens.i32").open("ab") as file:
        file.write(b"\1" * 12)
    with (tmp_path / "rows.jsonl").open("ab") as file:
        file.write(b'{"rows": 40, "he')
    again = RowStore(tmp_path, 3 * WIDTH)
    again.add(rows[1], greedy=True)
    found = RowStore(tmp_path, 3 * WIDTH).read([Part.LEARNING, Part.FINAL])
    assert np.array_equal(found.tokens, np.concatenate([rows[0].tokens, rows[1].tokens]))
    assert np.allclose(found.features[LENGTH:], rows[1].features, atol=2e-3)


def test_larger_features_than_half_precision_holds_stay_finite(tmp_path: Path) -> None:
    target = NumberTarget()
    rows = target.answer()
    rows.features[0, 0] = 1e30
    store = RowStore(tmp_path, 3 * WIDTH)
    store.add(rows, greedy=True)
    examples = store.read([Part.LEARNING])
    assert np.isfinite(examples.features).all()
    assert np.isfinite(examples.scale()).all()


def test_a_row_takes_as_many_bytes_as_is_said(tmp_path: Path) -> None:
    store = RowStore(tmp_path, 3 * WIDTH)
    store.add(NumberTarget().answer(), greedy=True)
    size = sum(path.stat().st_size for path in tmp_path.iterdir() if path.suffix != ".jsonl")
    assert size == LENGTH * RowStore.row_bytes(3 * WIDTH)


def test_an_answer_is_read_with_its_features_and_the_models_choices() -> None:
    model = FakeModel(64, features=("layer:1", "layer:2", "layer:3"), context_length=400)
    prompt, answer = [*range(2, 40)], [*range(5, 60)] * 4
    rows = read_rows(model, prompt, answer)
    assert rows is not None
    assert rows.tokens.tolist() == [prompt[-1], *answer]
    assert rows.features.shape == (len(answer) + 1, 6)
    assert rows.features[:, 0].tolist() == [float(len(prompt) - 1 + i) for i in range(len(answer) + 1)]
    logits = markov_logits(64)([*prompt, *answer[:10]])
    assert rows.likely[10, 0] == int(np.argmax(logits))
    assert model.length(0) == 0


def test_nothing_follows_the_end_of_a_text() -> None:
    model = FakeModel(64, features=("layer:1", "layer:2", "layer:3"))
    end = min(model.tokenizer.end_tokens)
    rows = read_rows(model, [5, 6], [7, 8, 9, end])
    assert rows is not None
    assert rows.tokens.tolist() == [6, 7, 8, 9]


def test_what_does_not_fit_the_context_is_left_out() -> None:
    model = FakeModel(64, features=("layer:1", "layer:2", "layer:3"), context_length=16)
    assert read_rows(model, [5] * 10, [6] * 7) is None
    assert read_rows(model, [5], [6]) is not None


@pytest.mark.parametrize("size", [5, 8, 100, 4099, 20_000])
def test_the_likeliest_tokens_are_found(size: int) -> None:
    logits = np.random.default_rng(size).standard_normal((7, size)).astype(np.float32)
    top, scores = likeliest(logits)
    for row in range(7):
        wanted = np.argsort(-logits[row])[:TOP]
        assert top[row, : len(wanted)].tolist() == wanted.tolist()
        exact = logits[row, wanted] - np.log(np.exp(logits[row].astype(np.float64)).sum())
        assert np.allclose(scores[row, : len(wanted)], exact, atol=1e-4)
    if size < TOP:
        assert (top[:, size:] == -1).all()


# --- sizes ---------------------------------------------------------------------------------------------


def test_the_vocabulary_ends_where_twice_as_many_tokens_add_little() -> None:
    counts = np.zeros(20_000, np.int64)
    counts[5_000:5_900] = 100
    counts[:5_000] = 0
    counts[6_000:6_100] = 1
    chosen = choose_vocabulary(counts)
    assert set(range(5_000, 5_900)) <= set(chosen.tolist())
    assert len(chosen) == 1024
    flat = choose_vocabulary(np.ones(20_000, np.int64))
    assert len(flat) > 8_000
    assert np.array_equal(flat, np.sort(flat))


def test_the_vocabulary_is_bounded_by_the_width() -> None:
    flat = np.ones(40_000, np.int64)
    assert most_tokens(576) == 6912
    assert 6400 <= len(choose_vocabulary(flat, at_most=6912)) <= 6912


def test_a_small_vocabulary_is_kept_whole() -> None:
    assert choose_vocabulary(np.ones(384, np.int64)).tolist() == [*range(384)]


def test_chosen_tokens_count_more_than_likely_ones() -> None:
    counts = count_tokens(10, [3, 3, 4], np.asarray([[5, 6], [5, -1 + 1]], np.int32))
    assert counts.tolist() == [1, 0, 0, 8, 4, 2, 1, 0, 0, 0]


def test_layers_are_near_the_beginning_the_middle_and_the_end() -> None:
    assert layers_for(30) == (2, 15, 27)
    assert layers_for(6) == (1, 3, 5)


def test_a_head_of_the_default_model_takes_at_most_8_mb() -> None:
    sizes = sizes_for(576, most_tokens(576))
    assert sizes.parameters * 20 / 32 < 6_000_000  # Q4_1; the tokenizer takes 1.7 MB
    assert sizes.rank % sizes.head_dim == 0


# --- the work folder -----------------------------------------------------------------------------------


def test_a_folder_is_of_one_model(tmp_path: Path) -> None:
    recipe = {"target": "one", "hash": "a"}
    WorkFolder(tmp_path / "work", recipe)
    WorkFolder(tmp_path / "work", recipe)
    with pytest.raises(ConfigError, match="a head of one"):
        WorkFolder(tmp_path / "work", {"target": "two", "hash": "b"})


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        WorkFolder(tmp_path / "file" / "work", {"target": "one"})


def test_two_processes_never_share_it(tmp_path: Path) -> None:
    folder = WorkFolder(tmp_path, {"target": "one"})
    with folder.locked(), pytest.raises(ConfigError, match="Another process"), folder.locked():
        pass
    with folder.locked():
        pass


def test_seconds_add_up_over_runs(tmp_path: Path) -> None:
    folder = WorkFolder(tmp_path, {"target": "one"})
    folder.spend("answers", 2.5)
    folder.spend("features", 1.0)
    folder.spend("answers", 2.0)
    assert WorkFolder(tmp_path, {"target": "one"}).spent("answers") == 4.5
    assert folder.spent() == 5.5
    (tmp_path / "spent.json").write_text("{")
    assert WorkFolder(tmp_path, {"target": "one"}).spent("answers") == 0.0


def test_rows_never_take_more_than_their_share_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = WorkFolder(tmp_path, {"target": "one"})

    def free(number: float) -> None:
        monkeypatch.setattr(workfolder, "_free", lambda _: int(number))

    free(1e12)
    assert folder.most_rows(1728) == workfolder.LARGEST // RowStore.row_bytes(1728)
    free(1e9)
    assert folder.most_rows(1728) == int(5e8) // RowStore.row_bytes(1728)
    free(1e6)
    with pytest.raises(CapacityError, match="too little space"):
        folder.most_rows(1728)


def test_dropping_rows_keeps_answers(tmp_path: Path) -> None:
    folder = WorkFolder(tmp_path, {"target": "one"})
    AnswerFile(folder.answers).add(some(2))
    RowStore(folder.rows, 3 * WIDTH).add(NumberTarget().answer(), greedy=True)
    drop_rows(tmp_path)
    assert not folder.rows.exists()
    assert json.loads(folder.answers.read_text().splitlines()[0])["answer"] == [5, 6, 7, 0]
