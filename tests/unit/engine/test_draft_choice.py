"""What could draft for a model, told from files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import gguf_factory
import gguf_hybrids
from foredraft import Engine
from foredraft.config import parse_speculation
from foredraft.engine.draft_choice import Room, draft_models, head_in_use, heads, judge
from foredraft.engine.model_facts import ModelFacts, facts_of
from foredraft.errors import ModelError
from foredraft.library import list_models
from foredraft.library.fingerprint import fingerprint_of

TARGET = ModelFacts(
    architecture="llama",
    quantization="Q4_0",
    parameters=1000,
    size_bytes=4_000_000_000,
    trained_context=4096,
    vocab_hash="a",
    gives_text_back=True,
    recurrent=False,
    weights=True,
)
DRAFT = replace(TARGET, parameters=100, size_bytes=400_000_000)
OTHER_WORDS = replace(DRAFT, vocab_hash="b")
DEAF = replace(TARGET, gives_text_back=False)


@pytest.mark.parametrize(
    ("target", "draft", "room", "expected"),
    [
        (TARGET, DRAFT, Room(), ("fits", "same_vocabulary")),
        (TARGET, replace(DRAFT, parameters=500), Room(), ("fits", "same_vocabulary")),
        (TARGET, replace(DRAFT, parameters=501), Room(), ("no", "size")),
        (TARGET, OTHER_WORDS, Room(), ("translation", "translated")),
        (TARGET, replace(OTHER_WORDS, gives_text_back=False), Room(), ("no", "vocabulary")),
        (DEAF, OTHER_WORDS, Room(), ("no", "vocabulary")),
        (DEAF, DRAFT, Room(), ("fits", "same_vocabulary")),
        (TARGET, replace(DRAFT, vocab_hash=""), Room(), ("no", "vocabulary")),
        (replace(TARGET, vocab_hash=""), replace(DRAFT, vocab_hash=""), Room(), ("no", "vocabulary")),
        (TARGET, DRAFT, Room(budget=399_999_999), ("no", "memory")),
        (TARGET, DRAFT, Room(budget=-5), ("no", "memory")),
        (TARGET, DRAFT, Room(free=399_999_999), ("no", "memory")),
        (TARGET, DRAFT, Room(budget=400_000_000, free=400_000_000), ("fits", "same_vocabulary")),
        (TARGET, replace(DRAFT, recurrent=True), Room(), ("no", "recurrent")),
        (TARGET, replace(DRAFT, weights=False), Room(), ("no", "unreadable")),
    ],
)
def test_judgement(target: ModelFacts, draft: ModelFacts, room: Room, expected: tuple[str, str]) -> None:
    remarks = judge(target, draft, room)
    assert remarks[0][:2] == expected
    for _, _, why in remarks:
        assert why.endswith(".")
        assert len(why) < 150


@pytest.mark.parametrize(
    ("draft", "room", "expected"),
    [
        (DRAFT, Room(), ["same_vocabulary"]),
        (replace(OTHER_WORDS, parameters=900), Room(), ["size", "translated"]),
        (replace(DRAFT, parameters=900), Room(budget=0, free=0), ["size", "memory", "same_vocabulary"]),
        (
            replace(OTHER_WORDS, parameters=900, recurrent=True, gives_text_back=False),
            Room(budget=0),
            ["recurrent", "vocabulary", "size", "memory"],
        ),
    ],
)
def test_every_reason_is_named(draft: ModelFacts, room: Room, expected: list[str]) -> None:
    assert [code for _, code, _ in judge(TARGET, draft, room)] == expected


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The models folder, with a target and models of all kinds."""
    made = tmp_path / "models"
    made.mkdir()
    gguf_factory.tiny_llama(made / "target.gguf", layers=8, embd=128)
    gguf_factory.tiny_llama(made / "tenth.gguf", layers=2, embd=64)
    gguf_factory.tiny_llama(made / "third.gguf", layers=2, embd=128)
    gguf_factory.tiny_llama(made / "other-words.gguf", layers=2, embd=64, vocab=400)
    gguf_factory.tiny_llama(made / "large.gguf", layers=9, embd=128)
    gguf_factory.vocab_only(made / "words.gguf")
    gguf_hybrids.tiny_mamba2(made / "recurrent.gguf")
    (made / "broken.gguf").write_bytes(b"GGUF and then nothing")
    return made


def test_the_best_comes_first_and_each_has_its_reason(folder: Path) -> None:
    gguf_factory.tiny_llama(folder / "part.gguf", split_tensors=4)
    next(folder.glob("part-00002-of-*.gguf")).unlink()
    stored = [model for model in list_models(folder) if model.source == "local"]
    found = draft_models(folder / "target.gguf", stored, Room())
    assert [(one.name, one.fits, one.code) for one in found[:3]] == [
        ("tenth", "fits", "same_vocabulary"),
        ("third", "fits", "same_vocabulary"),
        ("other-words", "translation", "translated"),
    ]
    assert {one.name: one.code for one in found[3:]} == {
        "large": "size",
        "target": "itself",
        "words": "unreadable",
        "broken": "unreadable",
        "recurrent": "recurrent",
        "part": "incomplete",
    }
    assert all(one.fits == "no" for one in found[3:])
    assert found[0].value == "tenth"
    assert 0.02 < (found[0].share or 0) < 0.2


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        (900, "It has 90 % of the model's parameters: a draft would cost as much time as it saves."),
        (1000, "It has as many parameters as the model: a draft would cost as much time as it saves."),
        (1_091_840, "It has 1,092 times the model's parameters: a draft would cost more time than it saves."),
    ],
)
def test_how_much_too_large_a_draft_is(parameters: int, says: str) -> None:
    remarks = judge(TARGET, replace(DRAFT, parameters=parameters), Room())
    assert says in [text for _, _, text in remarks]


def test_a_model_elsewhere_is_named_by_its_path(folder: Path, tmp_path: Path) -> None:
    elsewhere = gguf_factory.tiny_llama(tmp_path / "elsewhere.gguf")
    [found] = draft_models(folder / "target.gguf", [], Room(), others=[elsewhere])
    assert (found.value, found.fits) == (str(elsewhere), "fits")


def test_a_target_that_cannot_be_read(folder: Path) -> None:
    with pytest.raises(ModelError):
        draft_models(folder / "broken.gguf", [], Room())


def test_the_facts_are_those_of_the_loaded_model(folder: Path) -> None:
    with Engine.load(folder / "tenth.gguf", probe=False) as engine:
        info = engine.model.info
    facts = facts_of(folder / "tenth.gguf")
    assert (facts.vocab_hash, facts.parameters) == (info.vocab_hash, info.parameters)
    assert (facts.trained_context, facts.architecture) == (info.trained_context, info.architecture)


@pytest.mark.parametrize(
    "make",
    [
        gguf_hybrids.tiny_qwen35,
        gguf_hybrids.tiny_lfm2,
        gguf_hybrids.tiny_falcon_h1,
        gguf_hybrids.tiny_mamba2,
    ],
)
def test_models_with_a_state_are_known(make: Callable[[Path], Path], tmp_path: Path) -> None:
    make(tmp_path / "made.gguf")
    assert facts_of(tmp_path / "made.gguf").recurrent


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "made.gguf")
    before = facts_of(path)
    gguf_factory.tiny_llama(path, layers=3)
    assert facts_of(path).parameters > before.parameters


def test_heads_belong_by_the_models_hash(folder: Path) -> None:
    target = folder / "target.gguf"
    (folder / "heads").mkdir()
    mine = folder / "heads" / f"{fingerprint_of(target)[:16]}.gguf"
    theirs = folder / "heads" / f"{'0' * 16}.gguf"
    for head in (mine, theirs):
        head.write_bytes(b"GGUF")
    found = [one for one in heads(target, folder) if one.path.parent == folder / "heads"]
    assert [(one.path, one.fits, one.code) for one in found] == [
        (mine, "fits", "head"),
        (theirs, "no", "head"),
    ]
    assert found[0].value is None
    for speculation, used in (
        ("auto", mine),
        ("off", None),
        ("suffix", None),
        ("auto;heads:model=off", None),
        (f"auto;heads:model={theirs}", theirs),
        ("auto;heads:model=no-such-head", None),
    ):
        assert head_in_use(parse_speculation(speculation), mine, folder) == used
