"""Embedding models and rerankers of both backends, against transformers' forward with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import embedder_factory as factory
from foredraft.backends.llamacpp import BACKEND as LLAMACPP
from foredraft.backends.torch import BACKEND as TORCH
from foredraft.config import ModelOptions
from foredraft.embedding import Embedder, Encoded, Pooling, Vectors
from foredraft.engine.engine import Engine
from foredraft.errors import (
    ConfigError,
    ContextLengthError,
    ModelFormatError,
    UnsupportedModelError,
)
from foredraft.protocols import Backend

TEXTS = (
    "a man",
    "The world is good, and they know it.",
    "how many years have people been here?",
    "go",
    "she would make work after the day, and then see more of the old world " * 4,
)
GGUF_ERROR = 0.005
"""llama.cpp's table of GELU has half precision, and so has V in its attention."""

Loads = Callable[..., Embedder]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ModelOptions:
    return ModelOptions(threads=1, cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def loads(options: ModelOptions) -> Iterator[Loads]:
    """Loads embedders, which are closed at the end."""
    open_: list[Embedder] = []

    def load(path: Path, pooling: Pooling | None = None, changed: ModelOptions | None = None) -> Embedder:
        backend: Backend = LLAMACPP if path.suffix == ".gguf" else TORCH
        open_.append(backend.load_embedder(path, changed or options, pooling))
        return open_[-1]

    yield load
    for one in open_:
        one.close()
        one.close()


def states(model: Any, encoded: Encoded) -> Any:
    """The last hidden states of a text, of transformers."""
    with torch.no_grad():
        return model(torch.tensor([list(encoded.tokens)])).last_hidden_state[0].numpy()


def pooled(rows: Any, pooling: str) -> Any:
    return {"mean": rows.mean(0), "cls": rows[0], "last": rows[-1]}[pooling]


def largest(found: Vectors, expected: Sequence[Any]) -> float:
    return float(np.abs(found - np.stack(expected)).max() / np.abs(np.stack(expected)).max())


# --- vectors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_gguf_encoder_computes_what_transformers_does(tmp_path: Path, loads: Loads, pooling: str) -> None:
    model = factory.bert()
    embedder = loads(factory.bert_gguf(tmp_path / "bert.gguf", model, gguf.PoolingType[pooling.upper()]))
    assert (embedder.traits.kind, embedder.traits.pooling, embedder.traits.dimensions) == (
        "embedding",
        pooling,
        64,
    )
    texts = [embedder.encode(text) for text in TEXTS]
    expected = [pooled(states(model, text), pooling) for text in texts]
    assert largest(embedder.compute(texts), expected) < GGUF_ERROR


def test_a_gguf_decoder_is_pooled_at_its_last_token(tmp_path: Path, loads: Loads) -> None:
    model = factory.qwen3()
    embedder = loads(factory.qwen3_gguf(tmp_path / "qwen3.gguf", model))
    long = "one " * 1200  # several pieces
    texts = [embedder.encode(text) for text in (*TEXTS, long)]
    assert all(text.tokens[-1] == 2 for text in texts), "with the token that ends a text"
    assert len(texts[-1].tokens) > 1024
    expected = [states(model, text)[-1] for text in texts]
    assert largest(embedder.compute(texts), expected) < GGUF_ERROR


def test_a_longer_text_gets_a_larger_context(tmp_path: Path, loads: Loads) -> None:
    model = factory.bert(max_position_embeddings=1200)
    embedder = loads(factory.bert_gguf(tmp_path / "bert.gguf", model))
    short, long = embedder.encode("a man"), embedder.encode("go " * 1000)
    before = embedder.compute([short])
    assert largest(embedder.compute([long]), [states(model, long).mean(0)]) < GGUF_ERROR
    assert np.array_equal(embedder.compute([short]), before)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_folder_computes_what_transformers_does(tmp_path: Path, loads: Loads, pooling: str) -> None:
    model = factory.bert()
    switch = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}[pooling]
    modules = {"Pooling": {"pooling_mode_mean_tokens": False, f"pooling_mode_{switch}": True}}
    embedder = loads(factory.save_bert(tmp_path / "bert", model, modules))
    assert not embedder.traits.normalized, "modules.json has no Normalize"
    texts = [embedder.encode(text) for text in TEXTS]
    expected = [pooled(states(model, text), pooling) for text in texts]
    assert largest(embedder.compute(texts), expected) < 1e-5


def test_both_backends_make_the_same_tokens_and_nearly_the_same_vectors(tmp_path: Path, loads: Loads) -> None:
    model = factory.bert()
    folder = loads(factory.save_bert(tmp_path / "bert", model, {"Pooling": {"pooling_mode": "mean"}}))
    file = loads(factory.bert_gguf(tmp_path / "bert.gguf", model))
    ours, theirs = ([one.encode(text) for text in TEXTS] for one in (folder, file))
    assert [list(one.tokens) for one in ours] == [list(one.tokens) for one in theirs]
    assert [(one.head, one.tail) for one in ours] == [(one.head, one.tail) for one in theirs]
    assert largest(file.compute(theirs), list(folder.compute(ours))) < GGUF_ERROR


@pytest.mark.parametrize("form", ["bert.gguf", "qwen3.gguf", "bert"])
def test_a_text_alone_and_in_company_has_the_same_bits(tmp_path: Path, loads: Loads, form: str) -> None:
    embedder = loads(_made(tmp_path / form))
    texts = [embedder.encode(text) for text in TEXTS]
    alone = [embedder.compute([text])[0] for text in texts]
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 2, 0, 4], [1, 3]):
        together = embedder.compute([texts[place] for place in order])
        assert all(np.array_equal(row, alone[place]) for row, place in zip(together, order, strict=True))


def _made(path: Path) -> Path:
    if path.name == "bert":
        return factory.save_bert(path, factory.bert(), {"Pooling": {"pooling_mode": "mean"}})
    if path.name == "qwen3.gguf":
        return factory.qwen3_gguf(path, factory.qwen3())
    return factory.bert_gguf(path, factory.bert())


def test_layers_behind_the_pooling_and_prompts_come_from_the_files(tmp_path: Path, loads: Loads) -> None:
    from safetensors.torch import save_file

    model = factory.bert()
    dense = {"in_features": 64, "out_features": 8, "activation_function": "torch.nn.modules.activation.Tanh"}
    said = {"prompts": {"query": "go to: ", "document": ""}, "default_prompt_name": "document"}
    folder = factory.save_bert(
        tmp_path / "bert",
        model,
        {"Pooling": {"pooling_mode": "cls"}, "Dense": dense, "Normalize": {}},
        config_sentence_transformers=said,
        sentence_bert_config={"max_seq_length": 20},
    )
    weight, bias = torch.randn(8, 64), torch.randn(8)
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense" / "model.safetensors")
    embedder = loads(folder)
    traits = embedder.traits
    assert (traits.dimensions, traits.most_tokens, traits.normalized) == (8, 20, True)
    assert traits.prompts == said["prompts"]
    assert traits.default_prompt == "document"
    text = embedder.encode("a good man")
    expected = torch.tanh(weight @ torch.tensor(states(model, text)[0]) + bias).numpy()
    assert largest(embedder.compute([text]), [expected]) < 1e-5


# --- scores --------------------------------------------------------------------------------------------

PAIRS = (("the world", "a good man"), ("go", "many people know how to work here"), ("a man", ""))


def test_a_gguf_reranker_scores_what_transformers_does(tmp_path: Path, loads: Loads) -> None:
    model = factory.bert("BertForSequenceClassification", num_labels=1)
    embedder = loads(factory.bert_gguf(tmp_path / "bert.gguf", model, gguf.PoolingType.RANK))
    assert (embedder.traits.kind, embedder.traits.scores) == ("reranker", "logit")
    pairs = [embedder.encode_pair(*pair) for pair in PAIRS]
    assert pairs[0].tokens == [2, 5, 112, 3, 6, 109, 79, 3]
    with torch.no_grad():
        expected = [model(torch.tensor([list(pair.tokens)])).logits[0].numpy() for pair in pairs]
    assert np.abs(embedder.compute(pairs) - np.stack(expected)).max() < 0.05


def test_a_folder_s_reranker_tells_the_texts_of_a_pair_apart(tmp_path: Path, loads: Loads) -> None:
    model = factory.bert("BertForSequenceClassification", num_labels=1)
    embedder = loads(factory.save_bert(tmp_path / "bert", model))
    pairs = [embedder.encode_pair(*pair) for pair in PAIRS]
    assert list(pairs[0].segments) == [0, 0, 0, 0, 1, 1, 1, 1]
    with torch.no_grad():
        expected = [
            model(torch.tensor([list(pair.tokens)]), token_type_ids=torch.tensor([list(pair.segments)]))
            .logits[0]
            .numpy()
            for pair in pairs
        ]
    assert largest(embedder.compute(pairs), expected) < 1e-5


def test_a_reranker_that_says_yes_or_no(tmp_path: Path, loads: Loads) -> None:
    model = factory.qwen3("Qwen3ForSequenceClassification", num_labels=2)
    embedder = loads(factory.qwen3_gguf(tmp_path / "qwen3.gguf", model, gguf.PoolingType.RANK, rerank=True))
    assert embedder.traits.scores == "probability"
    pair = embedder.encode_pair("a {document} of work", "how we work")
    text = factory.RERANK_TEMPLATE.replace("{document}", "how we work").replace(
        "{query}", "a {document} of work"
    )
    plain = factory.qwen3_gguf(tmp_path / "plain.gguf", factory.qwen3())
    written = bytes(
        byte for token in pair.tokens for byte in loads(plain).tokenizer.token_bytes(token)
    ).decode()
    assert written == text.replace("<|im_start|>", "").replace("<|im_end|>", "")
    assert (pair.tokens[0], pair.tokens[-1]) == (1, 2), "the template's control tokens are tokens"
    with torch.no_grad():
        hidden = model.model(torch.tensor([list(pair.tokens)])).last_hidden_state[0, -1]
        expected = torch.softmax(model.score(hidden), 0)[0].item()
    assert abs(embedder.compute([pair])[0, 0] - expected) < GGUF_ERROR


@pytest.mark.parametrize(("said", "scores"), [(None, "logit"), ("torch.nn.Identity", "identity")])
def test_a_reranker_whose_authors_leave_its_numbers_as_they_are(
    tmp_path: Path, loads: Loads, said: str | None, scores: str
) -> None:
    config: Any = {} if said is None else {"sentence_transformers": {"activation_fn": said}}
    model = factory.bert("BertForSequenceClassification", num_labels=1, **config)
    assert loads(factory.save_bert(tmp_path / "bert", model)).traits.scores == scores


# --- texts that are too long ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["bert.gguf", "bert"])
def test_a_text_is_cut_between_its_special_tokens(tmp_path: Path, loads: Loads, form: str) -> None:
    embedder = loads(_made(tmp_path / form))
    text = embedder.encode("a man of the world")
    first, last = text.tokens[0], text.tokens[-1]
    end, start = text.cut(4, "end"), text.cut(4, "start")
    assert end is not None
    assert start is not None
    assert list(end.tokens) == [first, *text.tokens[1:3], last]
    assert list(start.tokens) == [first, *text.tokens[4:6], last]
    assert text.cut(7, "end") is text
    assert text.cut(2, "end") is None


def test_of_a_pair_the_document_is_cut(tmp_path: Path, loads: Loads) -> None:
    model = factory.bert("BertForSequenceClassification", num_labels=1)
    embedder = loads(factory.save_bert(tmp_path / "bert", model))
    pair = embedder.encode_pair("the world", "a good man of work")
    cut = pair.cut(7, "end")
    assert cut is not None
    assert list(cut.tokens) == [*pair.tokens[:6], pair.tokens[-1]]
    assert list(cut.segments) == [0, 0, 0, 0, 1, 1, 1]
    assert pair.cut(5, "end") is None, "nothing of the document would be left"


# --- what is refused -----------------------------------------------------------------------------------


def test_an_embedding_model_does_not_generate(tmp_path: Path, options: ModelOptions) -> None:
    rank = factory.bert("BertForSequenceClassification", num_labels=1)
    for path in (
        factory.bert_gguf(tmp_path / "bert.gguf", factory.bert()),
        factory.qwen3_gguf(tmp_path / "qwen3.gguf", factory.qwen3()),
        factory.save_bert(tmp_path / "folder", factory.bert(), {"Pooling": {"pooling_mode": "mean"}}),
        factory.save_bert(tmp_path / "rank", rank),
    ):
        with pytest.raises(UnsupportedModelError, match="it does not generate text"):
            Engine.load(path, cache_dir=options.cache_dir)


def test_a_model_that_generates_embeds_if_it_is_to(tmp_path: Path, loads: Loads) -> None:
    model = factory.qwen3()
    path = factory.qwen3_gguf(tmp_path / "qwen3.gguf", model, None)
    with pytest.raises(UnsupportedModelError, match="generates text and is not an embedding model"):
        loads(path)
    for pooling in ("last", "mean"):
        embedder = loads(path, pooling)
        text = embedder.encode("how many years")
        assert largest(embedder.compute([text]), [pooled(states(model, text), pooling)]) < GGUF_ERROR


def test_a_file_that_does_not_say_how_it_is_pooled_needs_a_setting(tmp_path: Path, loads: Loads) -> None:
    path = factory.bert_gguf(tmp_path / "bert.gguf", factory.bert(), None)
    with pytest.raises(UnsupportedModelError, match=r"bert\.pooling_type") as caught:
        loads(path)
    assert "embeddings =" in str(caught.value.hint)
    assert loads(path, "cls").traits.pooling == "cls"


@pytest.mark.parametrize("form", ["rank.gguf", "rank"])
def test_a_reranker_has_no_other_pooling(tmp_path: Path, loads: Loads, form: str) -> None:
    model = factory.bert("BertForSequenceClassification", num_labels=1)
    if form == "rank":
        path = factory.save_bert(tmp_path / form, model)
    else:
        path = factory.bert_gguf(tmp_path / form, model, gguf.PoolingType.RANK)
    with pytest.raises(ConfigError, match="is a reranker"):
        loads(path, "mean")


@pytest.mark.parametrize("form", ["sort.gguf", "sort"])
def test_a_classifier_is_no_reranker(tmp_path: Path, loads: Loads, form: str) -> None:
    model = factory.bert("BertForSequenceClassification", num_labels=3)
    if form == "sort":
        path = factory.save_bert(tmp_path / form, model)
    else:
        path = factory.bert_gguf(tmp_path / form, model, gguf.PoolingType.RANK, labels=("a", "b", "c"))
    with pytest.raises(UnsupportedModelError, match="3 classes"):
        loads(path)


@pytest.mark.parametrize(
    ("modules", "what"),
    [
        ({"Pooling": {"pooling_mode_max_tokens": True}}, "pools by max_tokens"),
        ({"Pooling": {"pooling_mode": ["mean", "cls"]}}, "pools by mean and cls"),
        ({"Pooling": {"pooling_mode": "mean", "include_prompt": False}}, "without the prompt"),
        ({"CNN": {}}, "a part that is not supported: CNN"),
    ],
)
def test_unknown_parts_are_refused(tmp_path: Path, loads: Loads, modules: Any, what: str) -> None:
    with pytest.raises(UnsupportedModelError, match=what):
        loads(factory.save_bert(tmp_path / "bert", factory.bert(), modules))


def test_parts_outside_of_the_folder_are_not_read(tmp_path: Path, loads: Loads) -> None:
    folder = factory.save_bert(tmp_path / "bert", factory.bert(), {})
    (folder / "modules.json").write_text('[{"type": "a.Transformer", "path": "../.."}]')
    with pytest.raises(ModelFormatError, match="not in the folder"):
        loads(folder)
    (folder / "modules.json").write_text("{")
    with pytest.raises(ModelFormatError, match="is damaged"):
        loads(folder)


@pytest.mark.parametrize("form", ["bert.gguf", "bert"])
def test_no_more_tokens_than_the_model_was_trained_for(tmp_path: Path, loads: Loads, form: str) -> None:
    path = _made(tmp_path / form)
    assert loads(path).traits.most_tokens == factory.CONTEXT
    assert loads(path, None, ModelOptions(threads=1, context_length=50)).traits.most_tokens == 50
    with pytest.raises(ContextLengthError, match="128 tokens"):
        loads(path, None, ModelOptions(threads=1, context_length=129))


def test_a_damaged_file_ends_only_its_trial(tmp_path: Path, loads: Loads) -> None:
    path = factory.bert_gguf(tmp_path / "bert.gguf", factory.bert(), twice=True)
    with pytest.raises(ModelFormatError, match="ends the process with it"):
        loads(path)
