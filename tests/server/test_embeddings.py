"""POST /v1/embeddings and /v1/rerank, by a server in a process of its own around small models."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gguf
import httpx
import numpy as np
import openai
import pytest

import embedder_factory as factory
from gguf_factory import tiny_llama
from served_process import served

SETTINGS = """\
[models.bert]
path = "bert.gguf"
threads = 1

[models.qwen3]
path = "qwen3.gguf"
threads = 1

[models.rank]
path = "rank.gguf"
threads = 1

[models.folder]
path = "./folder"
threads = 1

[models.chat]
path = "llama.gguf"
threads = 1

[models.chat-embeddings]
path = "llama.gguf"
threads = 1
embeddings = "last"
"""
SENTENCES = ["the world is good", "a man", "they know how to work", "go"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("embeddings")
    factory.bert_gguf(folder / "bert.gguf", factory.bert())
    factory.qwen3_gguf(folder / "qwen3.gguf", factory.qwen3())
    rank = factory.bert("BertForSequenceClassification", num_labels=1)
    factory.bert_gguf(folder / "rank.gguf", rank, gguf.PoolingType.RANK)
    tiny_llama(folder / "llama.gguf")
    factory.save_bert(
        folder / "folder",
        factory.bert(),
        {"Pooling": {"pooling_mode": "mean"}},
        config_sentence_transformers={"prompts": {"query": "look: "}},
    )
    (folder / "foredraft.toml").write_text(SETTINGS)
    with served(folder / "foredraft.toml", folder / "cache") as (address, _):
        yield address


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def post(url: str, path: str = "/v1/embeddings", **body: Any) -> Any:
    return httpx.post(f"{url}{path}", json={"model": "bert", **body}, timeout=60)


def vectors(url: str, given: Any, **body: Any) -> Any:
    reply = post(url, input=given, **body)
    assert reply.status_code == 200, reply.text
    data = reply.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return np.array([one["embedding"] for one in data], np.float32)


def error(reply: httpx.Response) -> str:
    assert reply.status_code == 400, reply.text
    return str(reply.json()["error"]["message"])


# --- embeddings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["bert", "qwen3", "chat-embeddings"])
def test_openai_s_client_gets_vectors_of_length_1(client: openai.OpenAI, model: str) -> None:
    reply = client.embeddings.create(model=model, input=SENTENCES)  # as base64, which the client decodes
    assert [one.index for one in reply.data] == [0, 1, 2, 3]
    assert reply.model == model
    found = np.array([one.embedding for one in reply.data])
    assert found.shape == (4, 64)
    assert np.allclose(np.linalg.norm(found, axis=1), 1)
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 8
    alone = client.embeddings.create(model=model, input=SENTENCES[2], encoding_format="float")
    assert np.array_equal(np.array(alone.data[0].embedding, np.float32), found[2].astype(np.float32)), (
        "the same bits"
    )


def test_floats_and_base64_are_the_same_numbers(url: str) -> None:
    reply = post(url, input=SENTENCES, encoding_format="base64").json()
    decoded = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in reply["data"]]
    assert np.array_equal(np.stack(decoded), vectors(url, SENTENCES))


def test_dimensions_are_cut_and_have_length_1_again(url: str) -> None:
    whole, cut = vectors(url, SENTENCES), vectors(url, SENTENCES, dimensions=8)
    assert cut.shape == (4, 8)
    expected = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    assert np.allclose(cut, expected, atol=1e-6)
    assert "65 are too many; this model has 64" in error(post(url, input="go", dimensions=65))


def test_token_ids_are_taken_as_they_are(url: str) -> None:
    tokens = [[2, 6, 79, 3], [2, 5, 112, 3]]
    as_text = vectors(url, ["a man", "the world"])
    assert np.array_equal(vectors(url, tokens), as_text)
    assert np.array_equal(vectors(url, tokens[1]), as_text[1:])


def test_the_most_texts_in_order(url: str) -> None:
    texts = [f"go {number}" for number in range(2048)]
    found = vectors(url, texts)
    assert found.shape == (2048, 64)
    for place in (0, 1, 33, 2047):
        assert np.array_equal(found[place], vectors(url, texts[place])[0])
    assert "at most 2048" in error(post(url, input=[*texts, "go"]))


def test_requests_side_by_side_have_the_same_bits(url: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda text: vectors(url, [text, "a man"]), SENTENCES * 4))
    for text, found in zip(SENTENCES * 4, together, strict=True):
        assert np.array_equal(found[:1], vectors(url, text))


def test_what_the_files_say_of_prompts_and_normalisation(url: str) -> None:
    plain, asked = (vectors(url, text, model="folder") for text in ("go", "look: go"))
    assert np.array_equal(vectors(url, "go", model="folder", prompt_name="query"), asked)
    assert not np.allclose(np.linalg.norm(plain), 1), "its modules.json has no Normalize"
    assert np.allclose(np.linalg.norm(vectors(url, "go", model="folder", normalize=True)), 1)
    assert "'query'" in error(post(url, model="folder", input="go", prompt_name="document"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "input: it is empty"),
        ([], "input: it is empty"),
        ([[]], "input: text 0 is empty"),
        (["go", ""], "input: text 1 is empty"),
        (5, "input: it has to be a text"),
        (None, "input: it has to be a text"),
        ([1.5], "input: it has to be a text"),
        (["go", 5], "input: it has to be a text"),
        ([["go"]], "input: it has to be a text"),
        ([True], "input: it has to be a text"),
        ([2, 9999, 3], "input has a token 9999; ids are 0 to"),
        ([-1], "input has a token -1"),
        ([[1], [10**30]], "input"),
    ],
)
def test_a_wrong_input_is_named(url: str, given: Any, said: str) -> None:
    assert said in error(post(url, input=given))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": "go", "dimensions": 0},
        {"input": "go", "encoding_format": "int8"},
        {"input": "go", "truncate": "middle"},
        {"input": "go", "truncate_prompt_tokens": 0},
        {"input": "go", "dimension": 8},
    ],
)
def test_other_wrong_bodies(url: str, body: Any) -> None:
    assert error(post(url, **body))


def test_half_a_character(url: str) -> None:
    headers = {"Content-Type": "application/json"}
    assert error(httpx.post(f"{url}/v1/embeddings", content='{"input": "\\ud800"}', headers=headers))


def test_a_text_that_is_too_long(url: str) -> None:
    long = "go " * 200
    message = error(post(url, input=["go", long]))
    assert "input: text 1 has 202 tokens; this model takes at most 128" in message
    assert "truncate" in message
    cut = vectors(url, long, truncate=True)
    assert np.array_equal(cut, vectors(url, "go " * 126))
    assert np.array_equal(cut, vectors(url, long, truncate="END"))
    assert np.array_equal(vectors(url, "a man " + long, truncate="start"), cut)
    assert np.array_equal(vectors(url, long, truncate_prompt_tokens=3), vectors(url, "go"))
    assert np.array_equal(vectors(url, long, truncate_prompt_tokens=-1), cut)
    assert "cannot be cut to 2 tokens" in error(post(url, input=long, truncate_prompt_tokens=2))
    for far_too_long in (post(url, input="go" * 1_000_000), post(url, input=["go", "go" * 1_000_000])):
        message = error(far_too_long)
        assert "truncate" in message
        assert "--rope-scaling" not in message


# --- reranking -----------------------------------------------------------------------------------------


def test_documents_by_relevance(url: str) -> None:
    documents = ["a man", "the old world", "go", "work in the day"]
    body = {"model": "rank", "query": "the world", "documents": documents}
    reply = post(url, "/v1/rerank", **body).json()
    scores = [one["relevance_score"] for one in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(one["index"] for one in reply["results"]) == [0, 1, 2, 3]
    assert all(0 < score < 1 for score in scores)
    assert reply["usage"]["total_tokens"] > 20
    for place, document in enumerate(documents):
        alone = post(url, "/v1/rerank", **{**body, "documents": [document]}).json()["results"][0]
        assert alone["relevance_score"] == next(
            one["relevance_score"] for one in reply["results"] if one["index"] == place
        )
    as_objects = {**body, "documents": [{"text": text} for text in documents]}
    best = post(url, "/rerank", **as_objects, top_n=2, return_documents=True).json()["results"]
    assert best == [{**one, "document": {"text": documents[one["index"]]}} for one in reply["results"][:2]]
    for path in ("/v1/reranking", "/reranking", "/v2/rerank"):
        assert post(url, path, **body).json()["results"] == reply["results"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"query": ""},
        {"query": None},
        {"documents": []},
        {"documents": "a man"},
        {"documents": [{"title": "a man"}]},
        {"documents": [5]},
        {"top_n": 0},
    ],
)
def test_wrong_bodies_of_rerank(url: str, wrong: Any) -> None:
    body = {"model": "rank", "query": "the world", "documents": ["a man"]}
    assert error(post(url, "/v1/rerank", **{**body, **wrong}))


def test_a_document_that_is_too_long(url: str) -> None:
    body = {"model": "rank", "query": "the world", "documents": ["a man", "go " * 200]}
    assert "document 1 has 20" in error(post(url, "/v1/rerank", **body))
    cut = post(url, "/v1/rerank", **body, truncate=True).json()
    assert len(cut["results"]) == 2
    assert "cannot be cut" in error(post(url, "/v1/rerank", **body, truncate_prompt_tokens=4))


# --- models of another kind ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "model", "body", "said"),
    [
        ("/v1/chat/completions", "bert", {"messages": [{"role": "user", "content": "go"}]}, "/v1/embeddings"),
        ("/v1/completions", "rank", {"prompt": "go"}, "/v1/rerank"),
        ("/v1/responses", "bert", {"input": "go"}, "/v1/embeddings"),
        (
            "/v1/messages",
            "folder",
            {"messages": [{"role": "user", "content": "go"}], "max_tokens": 5},
            "/v1/embeddings",
        ),
        ("/v1/embeddings", "chat", {"input": "go"}, 'embeddings = "last"'),
        ("/v1/embeddings", "rank", {"input": "go"}, "/v1/rerank"),
        ("/v1/rerank", "bert", {"query": "go", "documents": ["go"]}, "not a reranker"),
        ("/v1/rerank", "chat", {"query": "go", "documents": ["go"]}, "not a reranker"),
    ],
)
def test_a_model_of_another_kind(url: str, path: str, model: str, body: Any, said: str) -> None:
    assert said in error(post(url, path, **{**body, "model": model}))


def test_what_the_server_says_of_them(url: str) -> None:
    vectors(url, "go")
    post(url, "/v1/completions", model="chat", prompt="go", max_tokens=1)
    post(url, "/v1/rerank", model="rank", query="go", documents=["go"])
    models = {one["id"]: one for one in httpx.get(f"{url}/v1/models").json()["data"]}
    assert [models[name]["kind"] for name in ("bert", "rank", "chat")] == [
        "embedding",
        "reranker",
        "generative",
    ]
    assert models["bert"]["meta"]["dimensions"] == 64
    shown = {one["name"]: one for one in httpx.get(f"{url}/console/models").json()["configured"]}
    assert [shown[name]["kind"] for name in ("bert", "rank", "chat")] == [
        "embedding",
        "reranker",
        "generative",
    ]
    metrics = httpx.get(f"{url}/metrics").text
    assert 'foredraft_embedding_texts_total{model="bert"}' in metrics
    assert 'foredraft_memory_bytes{model="bert",part="weights_mapped"}' in metrics
    assert httpx.get(f"{url}/v1/speculation").status_code == 200


def test_their_tokens(url: str) -> None:
    reply = post(url, "/tokenize", content="a man", add_special=True).json()
    assert reply["tokens"] == [2, 6, 79, 3]
    assert post(url, "/tokenize", content="a man").json()["tokens"] == [6, 79]
