"""What the commands say of models that embed or rerank."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest

import embedder_factory as factory
from command_line import Command
from foredraft.cli import paths


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("embedding-models")
    rank = factory.bert("BertForSequenceClassification", num_labels=1)
    return {
        "embedding": factory.bert_gguf(folder / "bert.gguf", factory.bert()),
        "reranker": factory.bert_gguf(folder / "rank.gguf", rank, gguf.PoolingType.RANK),
        "folder": factory.save_bert(folder / "folder", factory.bert(), {"Pooling": {"pooling_mode": "cls"}}),
    }


@pytest.mark.parametrize("command", ["run", "chat", "bench"])
def test_they_do_not_generate(foredraft: Command, models: dict[str, Path], command: str) -> None:
    for name, says in (("embedding", "/v1/embeddings"), ("reranker", "/v1/rerank"), ("folder", "/v1/embed")):
        ran = foredraft(command, "-m", models[name], *(["hello"] if command == "run" else []))
        assert ran.code == 2
        assert "does not generate text" in ran.err
        assert says in ran.err


def test_inspect(foredraft: Command, models: dict[str, Path]) -> None:
    rows = {name: foredraft("models", "inspect", path).out.splitlines() for name, path in models.items()}
    kinds = {name: next(line for line in lines if line.startswith("kind")) for name, lines in rows.items()}
    assert kinds["embedding"].split()[1:] == ["embedding,", "pooling", "mean"]
    assert kinds["reranker"].split()[1:] == ["reranker"]
    assert kinds["folder"].split()[1:] == ["embedding"]
    assert json.loads(foredraft("models", "inspect", "--json", models["reranker"]).out)["kind"] == "reranker"


def test_a_model_that_generates_has_no_such_row(foredraft: Command, tiny: Path) -> None:
    lines = foredraft("models", "inspect", tiny).out.splitlines()
    assert not [line for line in lines if line.startswith("kind")]
    assert json.loads(foredraft("models", "inspect", "--json", tiny).out)["kind"] == "generative"


def test_list(foredraft: Command, models: dict[str, Path]) -> None:
    folder = paths.models_dir()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("embedding", "reranker"):
        (folder / models[name].name).symlink_to(models[name])
    lines = foredraft("models", "list").out.splitlines()
    assert any(line.startswith("bert") and line.rstrip().endswith("(embedding)") for line in lines)
    assert any(line.startswith("rank") and line.rstrip().endswith("(reranker)") for line in lines)
    kinds = {model["name"]: model["kind"] for model in json.loads(foredraft("models", "list", "--json").out)}
    assert {kinds["bert"], kinds["rank"]} == {"embedding", "reranker"}


@pytest.mark.parametrize("name", ["embedding", "reranker", "folder"])
def test_doctor(foredraft: Command, models: dict[str, Path], name: str) -> None:
    ran = foredraft("doctor", "-t", 1, "--json", models[name])
    value = json.loads(ran.out)
    assert ran.code == 0, value["problems"]
    assert value["model"]["kind"] == ("reranker" if name == "reranker" else "embedding")
    assert value["loaded"]["settings"]["pooling"] in ("mean", "cls", "rank")
    assert "exactness" not in value
