"""Engines on one model: each has a setting and sequences of its own, and the last one frees the model."""

from __future__ import annotations

from pathlib import Path

import pytest

import gguf_factory
from foredraft import Engine
from foredraft.engine.streams import fold
from foredraft.errors import BackendError, ConfigError, SpeculationStringError
from foredraft.types import SamplingParams

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
SETTINGS = ["off", "ngram-simple:n=3,m=4", "auto"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return gguf_factory.tiny_llama(tmp_path / "tiny.gguf", weight_type="q8_0")


def test_every_engine_answers_as_one_that_is_alone(path: Path, tmp_path: Path) -> None:
    with Engine.load(path, speculate="off", threads=1, cache_dir=tmp_path, remember=False) as alone:
        wanted = alone.generate("aabaab", PARAMS).tokens
    engines = Engine.load_together(path, SETTINGS, threads=1, cache_dir=tmp_path, remember=False)
    assert [str(engine.setup.configured) for engine in engines] == SETTINGS
    streams = [engine.stream("aabaab", PARAMS) for engine in engines]
    first = [next(stream) for stream in streams]  # all are in the middle of their answers at once
    said = [fold([event, *stream]) for event, stream in zip(first, streams, strict=True)]
    assert [completion.tokens for completion in said] == [wanted] * 3
    for engine in engines:
        engine.close()


def test_each_has_the_sequences_that_were_asked_for(path: Path, tmp_path: Path) -> None:
    engines = Engine.load_together(
        path, ["off", "off"], sequences=3, threads=1, cache_dir=tmp_path, remember=False
    )
    assert [engine.model.capabilities.sequences for engine in engines] == [3, 3]
    for engine in engines:
        engine.close()


def test_one_that_is_closed_leaves_the_others_their_model(path: Path, tmp_path: Path) -> None:
    one, other = Engine.load_together(path, ["off", "off"], threads=1, cache_dir=tmp_path, remember=False)
    one.close()
    assert len(other.generate("ab", PARAMS).tokens) == 24
    other.close()
    with pytest.raises(BackendError, match="closed"):
        other.model.tokenizer.encode("x")


def test_a_wrong_setting_is_found_before_anything_is_loaded() -> None:
    with pytest.raises(SpeculationStringError, match="nonsense"):
        Engine.load_together("/there/is/no.gguf", ["off", "nonsense"])


def test_no_setting_is_an_error(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one speculation setting at least"):
        Engine.load_together(path, [], threads=1, cache_dir=tmp_path)
