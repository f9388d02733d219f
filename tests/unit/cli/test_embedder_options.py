"""What an embedding model cannot be loaded with is refused, whatever its format, before it is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedder_factory
from command_line import Command
from foredraft.engine.embedding import load_embedder
from foredraft.engine.options import EngineOptions
from foredraft.errors import ConfigError

NOWHERE = "127.0.0.1:9"


@pytest.fixture(scope="module", params=["gguf", "safetensors"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, made = tmp_path_factory.mktemp("embedder"), embedder_factory.bert()
    if request.param == "gguf":
        return embedder_factory.bert_gguf(folder / "embedder.gguf", made)
    return embedder_factory.save_bert(folder / "embedder", made)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rpc": NOWHERE}, "only models that generate text are split over machines"),
        ({"adapters": {"it": "it.gguf"}}, "cannot have adapters"),
    ],
)
def test_what_embeds_is_loaded_without(
    options: EngineOptions, says: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        load_embedder(model, {**options, "cache_dir": tmp_path})
    assert refused.value.setting in options
    assert refused.value.hint


@pytest.mark.parametrize("by", ["option", "settings", "pooling"])
def test_a_server_does_not_split_an_embedding_model(
    by: str, model: Path, tmp_path: Path, foredraft: Command
) -> None:
    settings = tmp_path / "settings.toml"
    pooled = 'embeddings = "mean"\n' if by == "pooling" else ""
    settings.write_text(f'[models.it]\npath = "{model}"\nrpc = ["{NOWHERE}"]\n{pooled}')
    given = ("-m", model, "--rpc", NOWHERE) if by == "option" else ("--config", settings)
    ran = foredraft("serve", *given, "--port", 0)
    assert ran.code == 2
    assert "only models that generate text are split over machines" in ran.err
    assert "Leave --rpc out" in ran.err
    if by != "option":
        assert f"{settings}, [models.it]" in ran.err


def test_run_says_what_the_model_is_for(model: Path, foredraft: Command) -> None:
    """Before any host is asked."""
    ran = foredraft("run", "-m", model, "--rpc", NOWHERE, "hi")
    assert ran.code == 2
    assert "it does not generate text" in ran.err
