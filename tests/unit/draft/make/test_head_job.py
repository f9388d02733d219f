"""Making a head from beginning to end, with a tiny model; interrupted at every stage, or without what it
needs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from foredraft.bench.trace import Trace, TraceSet, read_traces, write_traces
from foredraft.bench.workloads import PromptCase
from foredraft.draft.make import job, prompts
from foredraft.draft.make import recorded as recorded_answers
from foredraft.draft.make.answers import Answer, AnswerFile
from foredraft.draft.make.clock import JobClock
from foredraft.draft.make.job import (
    ANSWERS,
    FEATURES,
    TRAINING,
    Stage,
    TrainedHead,
    Wishes,
    check_target,
    making,
)
from foredraft.draft.make.parts import Part, parts_of
from foredraft.draft.make.prompts import OwnPrompts
from foredraft.draft.make.store import RowStore
from foredraft.draft.make.training import Trainer
from foredraft.draft.make.workfolder import WorkFolder, drop_rows
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError, MissingDependencyError, UnsupportedModelError
from foredraft.types import SamplingParams
from gguf_factory import tiny_llama, unknown_architecture

PROMPTS = 40
LOADING = {"context_length": 256, "threads": 1, "probe": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", layers=6)


@pytest.fixture
def wishes(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wishes:
    """Of a head that is made in seconds: few and short answers."""
    monkeypatch.setattr(job, "ANSWER_TOKENS", 48)
    monkeypatch.setattr(job, "WAVE", 20)
    monkeypatch.setattr(job, "LEAST_ROWS", 100)
    monkeypatch.setattr(job, "ANSWERING", 100.0)  # all prompts, however slow the machine is
    monkeypatch.setattr(job, "SLOW_ANSWERING", 100.0)
    monkeypatch.setattr(job, "READING", 100.0)
    monkeypatch.setattr(job, "REPORTED_EVERY_S", 0.0)
    rows = [{"id": n, "category": "words", "turns": [f"Say {n} words."]} for n in range(PROMPTS)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Wishes(
        model,
        tmp_path / "work",
        1.0,
        prompts=file,
        own=False,
        loading={**LOADING, "cache_dir": tmp_path / "cache"},  # type: ignore[typeddict-item]
    )


def make_head(wishes: Wishes, tell: Callable[[Stage], None], note: Callable[[str], None]) -> TrainedHead:
    with making(wishes, tell, note) as made:
        return made.head


def ignore(told: object) -> None:
    """What is said on the way."""


def test_a_head_is_made(wishes: Wishes, tmp_path: Path) -> None:
    """With the context length that the model has, which is half of what is taken at most."""
    wishes = replace(wishes, loading={**wishes.loading, "context_length": 0})
    stages: list[Stage] = []
    head = make_head(wishes, stages.append, ignore)
    assert [*dict.fromkeys(stage.name for stage in stages)] == [ANSWERS, FEATURES, TRAINING]
    assert all(0.0 <= stage.done <= 1.0 for stage in stages)
    assert stages[-1].done == 1.0
    assert head.facts.layers == (1, 3, 5)
    assert head.facts.target_vocabulary == 384
    assert head.acceptance.rows > 0
    assert head.tokens > 100
    answers = AnswerFile(wishes.work / "answers.jsonl").answers
    parts = parts_of([answer.prompt for answer in answers], {answer.prompt for answer in answers})
    assert head.unseen == tuple(one for one, part in zip(answers, parts, strict=True) if part is Part.FINAL)
    assert head.tokens < sum(len(answer.answer) for answer in answers) - head.acceptance.rows
    head.write(tmp_path / "head.gguf")
    assert (tmp_path / "head.gguf").stat().st_size > 10_000


@pytest.mark.parametrize("stage", [ANSWERS, FEATURES, TRAINING])
def test_after_an_interruption_it_goes_on(wishes: Wishes, stage: str) -> None:
    def press(told: Stage) -> None:
        if told.name == stage and told.text[0] in "123456789":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_head(wishes, press, ignore)
    answers = AnswerFile(wishes.work / "answers.jsonl").answers
    rows = RowStore(wishes.work / "rows", 3 * 64).counts
    assert answers
    assert bool(rows) == (stage != ANSWERS)
    assert (wishes.work / "checkpoint.pt").exists() == (stage == TRAINING)
    head = make_head(wishes, ignore, ignore)
    assert head.acceptance.rows > 0
    again = AnswerFile(wishes.work / "answers.jsonl").answers
    assert again[: len(answers)] == answers
    assert len({answer.prompt for answer in again}) == len(again) > PROMPTS // 2


def test_an_interruption_loses_no_answer_that_is_complete(wishes: Wishes) -> None:
    """However early it comes: all are asked for at once."""

    counts: list[int] = []

    def press(told: Stage) -> None:
        if told.name == ANSWERS and told.text[0] in "123456789":
            counts.append(int(told.text.split()[0]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_head(wishes, press, ignore)
    assert len(AnswerFile(wishes.work / "answers.jsonl").answers) == counts[0] < PROMPTS / 2


class Time:
    """A clock on which each step of a model, each answer that is read and each batch takes a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
        self.seconds = 0.0
        if monkeypatch is not None:
            for owner, name in ((Engine, "step"), (job, "read_rows"), (Trainer, "_batch")):
                monkeypatch.setattr(owner, name, self._taking_a_second(getattr(owner, name)))

    def _taking_a_second(self, function: Callable[..., object]) -> Callable[..., object]:
        def slow(*arguments: object) -> object:
            self.seconds += 1.0
            return function(*arguments)

        return slow

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize("own", [True, False])
def test_all_stages_together_end_in_time(
    wishes: Wishes, monkeypatch: pytest.MonkeyPatch, *, own: bool
) -> None:
    """Also the prompts that the model writes, and the reading of more answers than there is time for."""
    monkeypatch.setattr(job, "ANSWERING", 0.3)
    monkeypatch.setattr(job, "SLOW_ANSWERING", 0.3)
    monkeypatch.setattr(job, "READING", 0.05)
    now = Time(monkeypatch)
    wishes = replace(wishes, seconds=300.0, own=own, now=now, began=0.0)
    stages: list[Stage] = []
    with making(wishes, stages.append, ignore) as made:
        spent = {name: made.clock.spent(name) for name in (ANSWERS, FEATURES, TRAINING)}
    assert sum(spent.values()) == now.seconds
    assert now.seconds <= 300.0
    assert spent[ANSWERS] <= 91.0
    assert spent[FEATURES] == 15.0
    assert all(0.0 <= stage.left <= 300.0 for stage in stages)
    assert [stage.left for stage in stages] == sorted((stage.left for stage in stages), reverse=True)


def test_a_slow_beginning_is_not_the_end(wishes: Wishes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where loading took what answers have of the time, there are answers all the same, until they are
    enough, or more than half of the time is over.
    """
    monkeypatch.setattr(job, "ANSWERING", 0.3)
    monkeypatch.setattr(job, "SLOW_ANSWERING", 0.5)
    now = Time(monkeypatch)
    now.seconds = 100.0
    make_head(replace(wishes, seconds=300.0, now=now, began=0.0), ignore, ignore)
    assert 100 <= AnswerFile(wishes.work / "answers.jsonl").tokens < 1000
    late = replace(wishes, seconds=300.0, now=now, began=now.seconds - 200.0, work=wishes.work / "late")
    with pytest.raises(ConfigError, match="too little text"):
        make_head(late, ignore, ignore)


def test_the_time_of_a_stage_that_was_killed_is_kept(tmp_path: Path) -> None:
    now = Time()
    folder = WorkFolder(tmp_path, {})
    clock = JobClock(folder, 100.0, now=now, began=0.0)
    with clock.stage(ANSWERS):
        for _ in range(35):
            now.seconds += 1.0
            clock.keep_sometimes()
        assert WorkFolder(tmp_path, {}).spent() == 30.0
    assert WorkFolder(tmp_path, {}).spent(ANSWERS) == 35.0
    assert clock.left() == 65.0


def test_a_head_that_was_made_is_not_made_again(wishes: Wishes, tmp_path: Path) -> None:
    """Even where what it learned from is gone, as it is when a head is finished."""
    first = make_head(wishes, ignore, ignore)
    drop_rows(wishes.work)
    stages: list[str] = []
    notes: list[str] = []
    again = make_head(wishes, lambda told: stages.append(told.name), notes.append)
    assert {FEATURES, TRAINING}.isdisjoint(stages)
    assert "--minutes" in notes[0]
    assert again.facts == first.facts
    assert again.unseen == first.unseen
    assert again.acceptance == first.acceptance
    for name, head in (("a", first), ("b", again)):
        head.write(tmp_path / name)
        head.write_safetensors(tmp_path / f"{name}.folder")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    file = "model.safetensors"
    assert (tmp_path / "a.folder" / file).read_bytes() == (tmp_path / "b.folder" / file).read_bytes()


@pytest.mark.parametrize("what", ["more time", "no checkpoint", "damaged note"])
def test_a_head_is_made_again_where_that_gives_another(
    wishes: Wishes, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "LEAST_TRAINING", 1.0)  # as long in both runs, however slow what comes before is
    make_head(wishes, ignore, ignore)
    if what == "more time":
        wishes = replace(wishes, seconds=2 * wishes.seconds)
    elif what == "no checkpoint":
        (wishes.work / "checkpoint.pt").unlink()
    else:
        (wishes.work / "made.json").write_text('{"answers": "many"}')
    stages: list[str] = []
    make_head(wishes, lambda told: stages.append(told.name), ignore)
    assert (TRAINING in stages) == (what != "damaged note")  # of which the checkpoint says that it ended
    assert json.loads((wishes.work / "made.json").read_text())["answers"] > PROMPTS // 2


def interrupted(wishes: Wishes) -> Path:
    """The checkpoint of a training that was interrupted when it had begun."""

    def press(told: Stage) -> None:
        if told.name == TRAINING:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_head(wishes, press, ignore)
    return wishes.work / "checkpoint.pt"


def test_with_more_answers_a_training_goes_on_with_its_tokens(
    wishes: Wishes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many others more answers would have chosen: a head's output rows belong to tokens."""
    monkeypatch.setattr(job, "choose_vocabulary", lambda counts, at_most: np.arange(100, 200))
    wishes = replace(wishes, seconds=100.0, now=Time(monkeypatch), began=0.0)
    interrupted(wishes)
    monkeypatch.setattr(job, "choose_vocabulary", lambda counts, at_most: np.arange(150, 250))
    rows = [{"id": n, "category": "words", "turns": [f"Write {n} lines."]} for n in range(20)]
    more = wishes.work / "more.jsonl"
    more.write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes: list[str] = []
    head = make_head(replace(wishes, prompts=more, began=wishes.now()), ignore, notes.append)
    assert head.vocabulary.tolist() == [*range(100, 200)]
    assert not notes


@pytest.mark.parametrize("without", ["vocabulary", "progress", "everything"])
def test_a_training_that_begins_again_says_so(wishes: Wishes, without: str) -> None:
    wishes = replace(wishes, seconds=4.0)
    checkpoint = interrupted(wishes)
    state = torch.load(checkpoint, weights_only=True)
    if without == "everything":
        checkpoint.write_bytes(b"nothing")
    else:
        del state[without]
        torch.save(state, checkpoint)
    notes: list[str] = []
    make_head(wishes, ignore, notes.append)
    [note] = notes
    assert str(checkpoint) in note
    assert "begins again" in note


def _folder_of(wishes: Wishes) -> WorkFolder:
    """The work folder of a head that was begun."""
    recipe = json.loads((wishes.work / "recipe.json").read_text())
    return WorkFolder(wishes.work, recipe)


def test_other_processes_are_kept_out_until_the_head_is_written(wishes: Wishes) -> None:
    with (
        making(wishes, ignore, ignore),
        pytest.raises(ConfigError, match="Another process"),
        making(wishes, ignore, ignore),
    ):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are others there")
def test_answers_are_for_their_owner_only(tmp_path: Path) -> None:
    """Also in a folder, and a file, that were there before."""
    path = tmp_path / "answers.jsonl"
    AnswerFile(path).add([Answer("trace", 0.0, (1,), (2,))])
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    AnswerFile(path).add([Answer("trace", 0.0, (3,), (4,))])
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(AnswerFile(path).answers) == 2
    RowStore(tmp_path / "rows", 3)
    assert (tmp_path / "rows").stat().st_mode & 0o777 == 0o700


def recorded(wishes: Wishes, path: Path, count: int) -> list[Trace]:
    """Writes as many recorded answers of thirty tokens."""
    params = SamplingParams(temperature=1.0, max_tokens=30, ignore_eos=True, seed=0)
    with Engine.load(wishes.model, speculate="off", **wishes.loading) as engine:
        info = engine.model.info
        asked = [(300, 301, number) for number in range(count)]
        traces = [
            Trace(f"t{prompt[-1]}", "use", prompt, engine.generate([*prompt], params).tokens)
            for prompt in asked
        ]
    write_traces(path, TraceSet(info.name, info.vocab_size, info.vocab_hash, (), traces))
    return traces


@pytest.mark.parametrize("count", [2, 3])
def test_of_three_prompts_one_is_learned_from(
    wishes: Wishes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """One is left to choose the best head on, and one to measure it on: two are too few."""
    monkeypatch.setattr(job, "LEAST_ROWS", 50)
    recorded(wishes, tmp_path / "traces.jsonl", count)
    wishes = replace(wishes, traces=tmp_path / "traces.jsonl", prompts=None)
    if count == 2:
        with pytest.raises(ConfigError, match="too few different prompts"):
            make_head(wishes, ignore, ignore)
        return
    head = make_head(wishes, ignore, ignore)
    assert len(head.unseen) == 1
    assert head.acceptance.rows == 28  # a draft of three fits, from the prompt's last token on


def test_too_little_text_is_an_error(wishes: Wishes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "LEAST_ROWS", 1_000_000)
    with pytest.raises(ConfigError, match="too little text"):
        make_head(wishes, ignore, ignore)


def test_rows_end_where_the_disk_is_full(wishes: Wishes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkFolder, "most_rows", lambda self, width: 600)
    make_head(wishes, ignore, ignore)
    assert 600 <= RowStore(wishes.work / "rows", 3 * 64).rows < 700


def test_recorded_answers_are_learned_from_first(wishes: Wishes, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl.gz"
    traces = recorded(wishes, file, 30)
    with Engine.load(wishes.model, speculate="off", **wishes.loading) as engine:
        info = engine.model.info
        other = tmp_path / "other.jsonl"
        write_traces(other, TraceSet("Other", info.vocab_size, "another hash", (), traces))
        with pytest.raises(ConfigError, match="other tokens"):
            recorded_answers.recorded(engine, other)
    notes: list[str] = []
    make_head(replace(wishes, traces=file), ignore, notes.append)
    assert any("30 recorded answers" in note and "sampled" in note for note in notes)
    assert not any("recorded with" in note for note in notes)
    answers = AnswerFile(wishes.work / "answers.jsonl").answers
    assert [answer.source for answer in answers[:30]] == ["trace"] * 30
    assert answers[30].source == "file"
    assert answers[3].prompt == (300, 301, 3)
    assert answers[3].answer == traces[3].output
    assert answers[3].temperature > 0.0


@pytest.mark.parametrize("given", ["traces", "prompts"])
def test_a_file_that_cannot_be_read_takes_no_time(wishes: Wishes, tmp_path: Path, given: str) -> None:
    """It is read before a model is loaded."""
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(ConfigError, match=r"empty\.jsonl"):
        make_head(replace(wishes, **{given: empty}), ignore, ignore)  # type: ignore[arg-type]
    assert not wishes.work.exists()


def test_that_another_name_may_be_another_model_is_said(wishes: Wishes, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    traces = recorded(wishes, file, 30)
    header = read_traces(file)
    write_traces(file, TraceSet("Twin", header.vocab_size, header.vocab_hash, (), traces))
    notes: list[str] = []
    make_head(replace(wishes, traces=file), ignore, notes.append)
    assert any("recorded with Twin" in note and "cannot be known" in note for note in notes)


def test_recorded_answers_of_another_model_are_refused(
    wishes: Wishes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "traces.jsonl"
    recorded(wishes, file, 30)
    monkeypatch.setattr(recorded_answers, "are_own", lambda engine, traces: False)
    with pytest.raises(ConfigError, match="hardly those of Tiny Llama") as caught:
        make_head(replace(wishes, traces=file), ignore, ignore)
    assert str(file) in str(caught.value)
    assert not AnswerFile(wishes.work / "answers.jsonl").answers


def test_a_model_writes_prompts_itself(model: Path, tmp_path: Path) -> None:
    """They come after what the template writes before a user's message, and are whole messages in it."""
    with Engine.load(model, speculate="off", sequences=4, cache_dir=tmp_path, **LOADING) as engine:  # type: ignore[arg-type]
        own = OwnPrompts(engine)
        opening = prompts._opening(engine.model.tokenizer)
        assert b"user" in b"".join(engine.model.tokenizer.token_bytes(token) for token in opening)
        for prompt in own.write(8):
            assert prompt[: len(opening)] == opening
            assert len(prompt) > len(opening)


def test_a_model_without_a_chat_template_begins_texts_itself(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "base.gguf", chat_template=None)
    with Engine.load(model, speculate="off", sequences=4, cache_dir=tmp_path, **LOADING) as engine:  # type: ignore[arg-type]
        written = list(OwnPrompts(engine).write(6))
        assert written
        assert all(len(prompt) > prompts.BEGINNING for prompt in written)


def test_prompts_that_have_an_answer_are_not_asked_again() -> None:
    seen: set[tuple[int, ...]] = {(1, 2)}
    found = list(prompts.unseen(iter([("own", [1, 2]), ("own", [3]), ("own", [3]), ("own", [4])]), seen, 5))
    assert found == [("own", [3]), ("own", [4])]
    assert seen == {(1, 2), (3,), (4,)}


def test_prompts_for_measuring_are_not_learned_from(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from a file nor from recorded answers, where a later turn begins with an earlier one."""
    shipped = [PromptCase("a", "words", ("Say a word.", "And another."))]
    monkeypatch.setattr(prompts, "shipped_prompts", lambda: shipped)
    file = tmp_path / "prompts.jsonl"
    row = {"id": "mine", "category": "words", "turns": ["Say a word."]}
    file.write_text(json.dumps(row) + "\n")
    with Engine.load(model, speculate="off", **LOADING, cache_dir=tmp_path) as engine:  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="for measuring"):
            prompts.of_file(engine, file)
        file.write_text(file.read_text() + json.dumps({**row, "id": "b", "turns": ["Mine."]}) + "\n")
        assert len(prompts.of_file(engine, file)) == 1
        [first] = prompts.for_measuring(engine.model.tokenizer)
        later = (*first, 300, 301)
        info = engine.model.info
        traces = [Trace("1", "use", first, (302, 303)), Trace("2", "use", later, (304, 305))]
        recording = tmp_path / "traces.jsonl"
        write_traces(recording, TraceSet(info.name, info.vocab_size, info.vocab_hash, (), traces))
        with pytest.raises(ConfigError, match="for measuring"):
            recorded_answers.recorded(engine, recording)
        traces.append(Trace("3", "use", first[:-1], (306, 307)))
        write_traces(recording, TraceSet(info.name, info.vocab_size, info.vocab_hash, (), traces))
        assert [answer.prompt for answer in recorded_answers.recorded(engine, recording)[0]] == [first[:-1]]


def test_what_is_given_after_the_time_for_answers_is_read_and_said(wishes: Wishes, tmp_path: Path) -> None:
    make_head(wishes, ignore, ignore)
    _folder_of(wishes).spend(ANSWERS, 1000.0)
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text("{")
    for given in (replace(wishes, prompts=damaged), replace(wishes, traces=damaged)):
        with pytest.raises(ConfigError, match=r"damaged\.jsonl"):
            make_head(given, ignore, ignore)
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"id": 1, "category": "words", "turns": ["Write a line."]}) + "\n")
    notes: list[str] = []
    make_head(replace(wishes, prompts=more), ignore, notes.append)
    assert any(f"1 of the prompts in {more} are not used" in note for note in notes)


# --- what is missing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["torch", "gguf"])
def test_without_a_package_it_says_which_extra_to_install(
    model: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=package) as caught:
        check_target(model)
    assert "draft" in str(caught.value.hint)


def test_a_model_whose_states_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="nonesuch"):
        check_target(unknown_architecture(tmp_path / "other.gguf", architecture="nonesuch"))


def test_a_folder_of_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnsupportedModelError, match="not a GGUF file"):
        check_target(tmp_path)


def test_a_model_of_two_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="2 layers"):
        check_target(tiny_llama(tmp_path / "small.gguf", layers=2))
