"""Python's clients against a server: whole answers, streams, tools, structured output and errors of each; and
of those that have them thoughts, images, embeddings, reranking, and streams that the client stops reading.

    python clients.py http://127.0.0.1:8080 [CLIENT]…

The server has the models `default`, `thinking`, `seeing`, `embedder` and `reranker`. Prints one JSON line a
case: {"client", "case", "error"}. The names of the functions are client and case.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import re
import struct
import sys
import tempfile
import time
import traceback
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

URL = ""
HELLO = "Say hello in one short sentence."
MESSAGES: list[Any] = [{"role": "user", "content": HELLO}]
CITY_SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": CITY_SCHEMA},
}
MOST = 40
STORY = "Tell me a very long story."
LONG = 1500
"""Tokens of an answer that is not read to its end."""

ENDS_S = 20.0
"""Seconds in which a request ends that is not read any more."""

TEXTS = ["all the same", "of one mind", "all the same"]


class City(BaseModel):
    """What structured answers are: short ones, however little a model knows."""

    name: Literal["Oslo", "Rome"]
    big: bool


def text(value: Any) -> None:
    """An answer with something in it."""
    assert isinstance(value, str), repr(value)
    assert value.strip(), repr(value)


def answered(value: Any) -> None:
    """Any answer: to a result of a tool a small model sometimes says nothing."""
    assert isinstance(value, str), repr(value)


def raises(kind: type[Exception], work: Callable[[], object], *, says: str = "max_tokens") -> None:
    """An error of this kind, whose message names the field that is wrong."""
    told = ""
    try:
        work()
    except kind as error:
        told = str(error)
    assert says in told, told or f"no {kind.__name__}"


def picture() -> bytes:
    """A red square as PNG."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xff\0\0" * 64) * 64
    head = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")
    )


PICTURE = base64.b64encode(picture()).decode()
PICTURE_URL = f"data:image/png;base64,{PICTURE}"
LOOK: list[Any] = [
    {"type": "text", "text": HELLO},
    {"type": "image_url", "image_url": {"url": PICTURE_URL}},
]


def seen(read: Callable[[bool], int]) -> None:
    """A picture has rows of its own in the prompt, whose tokens `read` counts: with it, or without."""
    assert read(True) > read(False) + 4


def vectors(found: list[list[float]]) -> None:
    """The vectors of `TEXTS`: of length 1, those of equal texts equal."""
    assert len(found) == len(TEXTS)
    assert all(abs(sum(number * number for number in vector) - 1) < 1e-3 for vector in found)
    assert found[0] == found[2] != found[1]


def _aborted() -> float:
    """Requests that ended because their client did not read the answer."""
    with urllib.request.urlopen(f"{URL}/metrics", timeout=30) as answer:
        said = answer.read().decode()
    found = re.findall(r'^foredraft_requests_total{.*finished_reason="abort".*} (.*)$', said, re.MULTILINE)
    return sum(map(float, found))


def cancelled(read: Callable[[], object]) -> None:
    """`read` takes the beginning of a long answer and leaves the rest: the request ends."""
    before = _aborted()
    read()
    gc.collect()
    end = time.monotonic() + ENDS_S
    while _aborted() == before:
        assert time.monotonic() < end, "the request goes on"
        time.sleep(0.1)


# --- openai --------------------------------------------------------------------------------------------


def _openai() -> Any:
    import openai

    return openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


def openai_whole() -> None:
    answer = _openai().chat.completions.create(model="gpt-4o", messages=MESSAGES, max_tokens=MOST)
    text(answer.choices[0].message.content)
    assert answer._request_id, "the id of the request is in the header"
    text(_openai().completions.create(model="gpt-4o", prompt="Once upon", max_tokens=MOST).choices[0].text)
    text(_openai().responses.create(model="gpt-4o", input=HELLO, max_output_tokens=MOST).output_text)
    assert [model.id for model in _openai().models.list()]


def openai_stream() -> None:
    # The library's helper for streams refuses an answer that was cut, so this one has to end by itself.
    options: Any = {"model": "gpt-4o", "messages": MESSAGES, "max_tokens": 1000, "temperature": 0}
    with _openai().chat.completions.stream(**options) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(pieces) == final.choices[0].message.content
    usage = [
        chunk.usage
        for chunk in _openai().chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    ]
    assert usage[-1].completion_tokens
    assert not any(usage[:-1])
    with _openai().responses.stream(model="gpt-4o", input=HELLO, max_output_tokens=MOST) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(pieces) == stream.get_final_response().output_text


def openai_tools() -> None:
    options: Any = {
        "model": "gpt-4o",
        "messages": MESSAGES,
        "tools": [FUNCTION],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    message = _openai().chat.completions.create(**options).choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    again = {**options, "messages": [*MESSAGES, message, result], "tool_choice": "none", "max_tokens": MOST}
    answered(_openai().chat.completions.create(**again).choices[0].message.content)


def openai_structured() -> None:
    chat = _openai().chat.completions.parse(model="gpt-4o", messages=MESSAGES, response_format=City)
    assert isinstance(chat.choices[0].message.parsed, City)
    answer = _openai().responses.parse(model="gpt-4o", input=HELLO, text_format=City)
    assert isinstance(answer.output_parsed, City)


def openai_errors() -> None:
    import openai

    def chat(**options: Any) -> Callable[[], object]:
        return lambda: _openai().chat.completions.create(model="gpt-4o", messages=MESSAGES, **options)

    raises(openai.BadRequestError, chat(max_tokens=0))
    raises(openai.BadRequestError, chat(extra_body={"max_token": 1}))
    raises(openai.BadRequestError, lambda: _openai().responses.create(input=[], model="x"), says="input")
    raises(openai.NotFoundError, lambda: _openai().models.retrieve("nonesuch"), says="nonesuch")


def openai_thinking() -> None:
    ask: Any = {"model": "thinking", "messages": MESSAGES, "max_tokens": MOST}
    text(_openai().chat.completions.create(**ask).choices[0].message.reasoning_content)
    deltas = [chunk.choices[0].delta for chunk in _openai().chat.completions.create(**ask, stream=True)]
    text("".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas))
    answer = _openai().responses.create(model="thinking", input=HELLO, max_output_tokens=MOST)
    text(answer.output[0].content[0].text)
    assert answer.usage.output_tokens_details.reasoning_tokens


def openai_images() -> None:
    def chat(look: bool) -> int:
        messages: Any = [{"role": "user", "content": LOOK if look else HELLO}]
        answer = _openai().chat.completions.create(model="seeing", messages=messages, max_tokens=8)
        tokens: int = answer.usage.prompt_tokens
        return tokens

    def responses(look: bool) -> int:
        content: list[Any] = [{"type": "input_text", "text": HELLO}]
        content += [{"type": "input_image", "image_url": PICTURE_URL, "detail": "auto"}] if look else []
        given: Any = [{"role": "user", "content": content}]
        tokens: int = (
            _openai().responses.create(model="seeing", input=given, max_output_tokens=8).usage.input_tokens
        )
        return tokens

    seen(chat)
    seen(responses)


def openai_embeddings() -> None:
    answer = _openai().embeddings.create(model="embedder", input=TEXTS)
    vectors([one.embedding for one in answer.data])
    few = _openai().embeddings.create(model="embedder", input=TEXTS, dimensions=8, encoding_format="float")
    assert len(few.data[0].embedding) == 8


def openai_cancel() -> None:
    def read() -> None:
        asked: Any = [{"role": "user", "content": STORY}]
        stream = _openai().chat.completions.create(model="x", messages=asked, max_tokens=LONG, stream=True)
        next(chunk for chunk in stream if chunk.choices[0].delta.content)
        stream.close()

    cancelled(read)


# --- anthropic -----------------------------------------------------------------------------------------

CLAUDE: dict[str, Any] = {"model": "claude-opus-4-8", "messages": MESSAGES, "max_tokens": MOST}
CLAUDE_TOOL: Any = {"name": "get_weather", "description": "The weather.", "input_schema": CITY_SCHEMA}


def _anthropic() -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)


def anthropic_whole() -> None:
    answer = _anthropic().messages.create(**CLAUDE)
    text(answer.content[0].text)
    assert answer._request_id
    assert _anthropic().messages.count_tokens(model="x", messages=MESSAGES).input_tokens
    assert [model.id for model in _anthropic().models.list()]


def anthropic_stream() -> None:
    with _anthropic().messages.stream(**CLAUDE) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == final.content[0].text
    assert final.usage.output_tokens


def anthropic_tools() -> None:
    options = {**CLAUDE, "tools": [CLAUDE_TOOL], "max_tokens": 200}
    message = _anthropic().messages.create(
        **options, tool_choice={"type": "any", "disable_parallel_tool_use": True}
    )
    assert message.stop_reason == "tool_use"
    (call,) = (block for block in message.content if block.type == "tool_use")
    assert call.input["city"] in ("Oslo", "Rome")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    answered(
        _anthropic()
        .messages.create(**{**options, "messages": history, "tool_choice": {"type": "none"}})
        .content[0]
        .text
    )


def anthropic_structured() -> None:
    schema = {**City.model_json_schema(), "additionalProperties": False}
    form = {"format": {"type": "json_schema", "schema": schema}}
    answer = _anthropic().messages.create(**{**CLAUDE, "max_tokens": 300}, output_config=form)
    City.model_validate_json(answer.content[0].text)


def anthropic_errors() -> None:
    import anthropic

    raises(anthropic.BadRequestError, lambda: _anthropic().messages.create(**{**CLAUDE, "max_tokens": 0}))
    slip = {"stop": ["x"]}
    raises(
        anthropic.BadRequestError,
        lambda: _anthropic().messages.create(**CLAUDE, extra_body=slip),
        says="stop",
    )


def anthropic_thinking() -> None:
    thinks = {**CLAUDE, "model": "thinking", "max_tokens": 1100}
    answer = _anthropic().messages.create(**thinks, thinking={"type": "enabled", "budget_tokens": 1024})
    assert answer.content[0].type == "thinking"
    text(answer.content[0].thinking)
    with _anthropic().messages.stream(**thinks) as stream:
        pieces = [event.thinking for event in stream if event.type == "thinking"]
    text("".join(pieces))


def anthropic_images() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}

    def read(look: bool) -> int:
        content: list[Any] = [{"type": "text", "text": HELLO}]
        content += [{"type": "image", "source": source}] if look else []
        asked: Any = [{"role": "user", "content": content}]
        usage = _anthropic().messages.create(model="seeing", messages=asked, max_tokens=8).usage
        tokens: int = usage.input_tokens + usage.cache_read_input_tokens
        return tokens

    seen(read)


def anthropic_cancel() -> None:
    def read() -> None:
        asked: Any = [{"role": "user", "content": STORY}]
        with _anthropic().messages.stream(**{**CLAUDE, "messages": asked, "max_tokens": LONG}) as stream:
            next(iter(stream.text_stream))

    cancelled(read)


# --- litellm -------------------------------------------------------------------------------------------


def _litellm(provider: str, **options: Any) -> Any:
    import litellm

    litellm.suppress_debug_info = True
    base = URL if provider == "anthropic" else f"{URL}/v1"
    given = {"messages": MESSAGES, "max_tokens": MOST, "num_retries": 0, **options}
    name = given.pop("model", "default")
    return litellm.completion(model=f"{provider}/{name}", api_base=base, api_key="none", **given)


def litellm_whole() -> None:
    for provider in ("openai", "anthropic", "hosted_vllm"):
        text(_litellm(provider).choices[0].message.content)


def litellm_stream() -> None:
    for provider in ("openai", "anthropic"):
        text("".join(chunk.choices[0].delta.content or "" for chunk in _litellm(provider, stream=True)))


def litellm_tools() -> None:
    for provider in ("openai", "anthropic"):
        answer = _litellm(provider, tools=[FUNCTION], tool_choice="required", max_tokens=200)
        call, *_ = answer.choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")


def litellm_structured() -> None:
    City.model_validate_json(
        _litellm("openai", response_format=City, max_tokens=300).choices[0].message.content
    )


def litellm_errors() -> None:
    import litellm

    raises(litellm.BadRequestError, lambda: _litellm("openai", max_tokens=0))


def litellm_thinking() -> None:
    for provider in ("openai", "anthropic", "hosted_vllm"):
        text(_litellm(provider, model="thinking").choices[0].message.reasoning_content)
        deltas = [chunk.choices[0].delta for chunk in _litellm(provider, model="thinking", stream=True)]
        text("".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas))


def litellm_images() -> None:
    for provider in ("openai", "anthropic"):

        def read(look: bool, provider: str = provider) -> int:
            asked = [{"role": "user", "content": LOOK if look else HELLO}]
            tokens: int = _litellm(provider, model="seeing", messages=asked).usage.prompt_tokens
            return tokens

        seen(read)


def litellm_embeddings() -> None:
    import litellm

    at = {"api_base": f"{URL}/v1", "api_key": "none", "input": TEXTS}
    for provider in ("openai", "hosted_vllm"):
        vectors([one["embedding"] for one in litellm.embedding(model=f"{provider}/embedder", **at).data])


def litellm_rerank() -> None:
    import litellm

    at = {"api_base": f"{URL}/v1", "api_key": "none", "query": TEXTS[0], "documents": TEXTS}
    answer = litellm.rerank(model="hosted_vllm/reranker", top_n=2, **at)
    scores = [one["relevance_score"] for one in answer.results]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)


def litellm_cancel() -> None:
    def read() -> None:
        asked = [{"role": "user", "content": STORY}]
        stream = _litellm("openai", messages=asked, max_tokens=LONG, stream=True)
        next(chunk for chunk in stream if chunk.choices[0].delta.content)
        stream.completion_stream.close()

    cancelled(read)


# --- langchain-openai ----------------------------------------------------------------------------------


def _langchain(**options: Any) -> Any:
    from langchain_openai import ChatOpenAI

    given = {"model": "gpt-4o", "max_tokens": MOST, "max_retries": 0, **options}
    return ChatOpenAI(base_url=f"{URL}/v1", api_key="none", **given)


def langchain_whole() -> None:
    text(_langchain().invoke(HELLO).content)
    answer = _langchain(use_responses_api=True).invoke(HELLO)
    text(answer.text if isinstance(answer.text, str) else answer.text())


def langchain_stream() -> None:
    chunks = list(_langchain(stream_usage=True).stream(HELLO))
    text("".join(chunk.content for chunk in chunks))
    assert any(chunk.usage_metadata for chunk in chunks)


def langchain_tools() -> None:
    bound = _langchain(max_tokens=300).bind_tools([FUNCTION], tool_choice="any", parallel_tool_calls=False)
    (call,) = bound.invoke(HELLO).tool_calls
    assert call["args"]["city"] in ("Oslo", "Rome")


def langchain_structured() -> None:
    for method in ("json_schema", "function_calling"):
        answer = _langchain(max_tokens=300).with_structured_output(City, method=method).invoke(HELLO)
        assert isinstance(answer, City), (method, answer)


def langchain_errors() -> None:
    import openai

    raises(openai.BadRequestError, lambda: _langchain(temperature=9).invoke(HELLO), says="temperature")


def langchain_thinking() -> None:
    asked = _langchain(model="thinking", use_responses_api=True, reasoning={"summary": "auto"})
    blocks = asked.invoke(HELLO).content_blocks
    text("".join(block.get("reasoning", "") for block in blocks if block["type"] == "reasoning"))


def _looked(model: Callable[..., Any]) -> None:
    """LangChain's own form of an image."""
    from langchain_core.messages import HumanMessage

    def read(look: bool) -> int:
        content: list[Any] = [{"type": "text", "text": HELLO}]
        content += [{"type": "image", "base64": PICTURE, "mime_type": "image/png"}] if look else []
        answer = model(model="seeing").invoke([HumanMessage(content=content)])
        tokens: int = answer.usage_metadata["input_tokens"]
        return tokens

    seen(read)


def langchain_images() -> None:
    _looked(_langchain)
    _looked(lambda **given: _langchain(use_responses_api=True, **given))


def langchain_embeddings() -> None:
    from langchain_openai import OpenAIEmbeddings

    # It would count tokens with the vocabulary of a model of OpenAI's, and send those.
    model = OpenAIEmbeddings(
        base_url=f"{URL}/v1", api_key="none", model="embedder", check_embedding_ctx_length=False
    )
    vectors(model.embed_documents(TEXTS))
    assert model.embed_query(TEXTS[1]) == model.embed_documents(TEXTS)[1]


def _left(model: Any) -> None:
    """A stream of LangChain's is given up."""

    def read() -> None:
        stream = model.stream(STORY)
        next(chunk for chunk in stream if chunk.text)
        stream.close()

    cancelled(read)


def langchain_cancel() -> None:
    _left(_langchain(max_tokens=LONG))


# --- langchain-anthropic -------------------------------------------------------------------------------


def _langchainanthropic(**options: Any) -> Any:
    from langchain_anthropic import ChatAnthropic

    given = {"model": "claude-opus-4-8", "max_tokens": MOST, "max_retries": 0, **options}
    return ChatAnthropic(base_url=URL, api_key="none", **given)


def langchainanthropic_whole() -> None:
    text(_langchainanthropic().invoke(HELLO).text)


def langchainanthropic_stream() -> None:
    chunks = list(_langchainanthropic().stream(HELLO))
    text("".join(chunk.text for chunk in chunks))
    assert any(chunk.usage_metadata for chunk in chunks)


def langchainanthropic_tools() -> None:
    tool = {"name": "get_weather", "description": "The weather.", "input_schema": CITY_SCHEMA}
    bound = _langchainanthropic(max_tokens=300).bind_tools([tool], tool_choice="any")
    message = bound.invoke(HELLO)
    assert message.tool_calls[0]["args"]["city"] in ("Oslo", "Rome")
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in message.tool_calls
    ]
    unforced = _langchainanthropic().bind_tools([tool], tool_choice={"type": "none"})
    answered(unforced.invoke([*MESSAGES, message, *results]).text)


def langchainanthropic_structured() -> None:
    for method in ("json_schema", "function_calling"):
        bound = _langchainanthropic(max_tokens=300).with_structured_output(City, method=method)
        answer = bound.invoke(HELLO)
        assert isinstance(answer, City), (method, answer)


def langchainanthropic_errors() -> None:
    import anthropic

    wrong = _langchainanthropic(temperature=9)
    raises(anthropic.BadRequestError, lambda: wrong.invoke(HELLO), says="temperature")


def langchainanthropic_thinking() -> None:
    blocks = _langchainanthropic(model="thinking").invoke(HELLO).content_blocks
    text("".join(block.get("reasoning", "") for block in blocks if block["type"] == "reasoning"))


def langchainanthropic_images() -> None:
    _looked(_langchainanthropic)


def langchainanthropic_cancel() -> None:
    _left(_langchainanthropic(max_tokens=LONG))


# --- llama-index ---------------------------------------------------------------------------------------


def _llamaindex(**options: Any) -> Any:
    from llama_index.llms.openai_like import OpenAILike

    given = {"model": "default", "max_tokens": MOST, "max_retries": 0, **options}
    return OpenAILike(
        api_base=f"{URL}/v1", api_key="none", is_chat_model=True, is_function_calling_model=True, **given
    )


def _asked() -> Any:
    from llama_index.core.llms import ChatMessage

    return ChatMessage(role="user", content=HELLO)


def llamaindex_whole() -> None:
    text(_llamaindex().chat([_asked()]).message.content)
    text(_llamaindex().complete(HELLO).text)


def llamaindex_stream() -> None:
    text("".join(chunk.delta or "" for chunk in _llamaindex().stream_chat([_asked()])))


class Where(BaseModel):
    """What a tool is asked with."""

    city: Literal["Oslo", "Rome"]


def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def llamaindex_tools() -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool

    model, tool = _llamaindex(max_tokens=300), FunctionTool.from_defaults(weather, fn_schema=Where)
    response = model.chat_with_tools([tool], chat_history=[_asked()], tool_required=True)
    call, *_ = model.get_tool_calls_from_response(response)
    assert call.tool_kwargs["city"] in ("Oslo", "Rome")
    named = {"tool_call_id": call.tool_id}
    result = ChatMessage(role="tool", content=str(tool(**call.tool_kwargs)), additional_kwargs=named)
    answered(model.chat([_asked(), response.message, result]).message.content)


def llamaindex_structured() -> None:
    answer = _llamaindex(max_tokens=300, should_use_structured_outputs=True).as_structured_llm(City)
    assert isinstance(answer.complete(HELLO).raw, City)


def llamaindex_errors() -> None:
    import openai

    wrong = _llamaindex(additional_kwargs={"top_p": 3})
    raises(openai.BadRequestError, lambda: wrong.complete(HELLO), says="top_p")


def llamaindex_thinking() -> None:
    answer = _llamaindex(model="thinking").chat([_asked()])
    text("".join(block.content or "" for block in answer.message.blocks if block.block_type == "thinking"))
    *_, last = _llamaindex(model="thinking").stream_chat([_asked()])
    text("".join(block.content or "" for block in last.message.blocks if block.block_type == "thinking"))


def llamaindex_images() -> None:
    from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock

    def read(look: bool) -> int:
        blocks: list[Any] = [TextBlock(text=HELLO)]
        blocks += [ImageBlock(image=picture(), image_mimetype="image/png")] if look else []
        answer = _llamaindex(model="seeing").chat([ChatMessage(role="user", blocks=blocks)])
        tokens: int = answer.raw.usage.prompt_tokens
        return tokens

    seen(read)


def llamaindex_embeddings() -> None:
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    model = OpenAILikeEmbedding(model_name="embedder", api_base=f"{URL}/v1", api_key="none")
    vectors(model.get_text_embedding_batch(TEXTS))
    assert model.get_query_embedding(TEXTS[1]) == model.get_text_embedding_batch(TEXTS)[1]


def llamaindex_cancel() -> None:
    def read() -> None:
        stream = _llamaindex(max_tokens=LONG).stream_complete(STORY)
        next(chunk for chunk in stream if chunk.delta)
        stream.close()

    cancelled(read)


# --- llm -----------------------------------------------------------------------------------------------


def _llm(name: str = "default", **more: bool) -> Any:
    """The model as its documentation sets up one of another server: in a file in its folder."""
    import llm

    folder = Path(tempfile.mkdtemp())
    os.environ["LLM_USER_PATH"] = str(folder)
    entry = {"model_id": "local", "model_name": name, "api_base": f"{URL}/v1", "api_key_name": "local"}
    can = {"supports_tools": True, "supports_schema": True, "vision": True, **more}
    (folder / "extra-openai-models.yaml").write_text(json.dumps([{**entry, **can}]))
    (folder / "keys.json").write_text(json.dumps({"local": "none"}))
    return llm.get_model("local")


def llm_whole() -> None:
    text(_llm().prompt(HELLO, max_tokens=MOST, stream=False).text())


def llm_stream() -> None:
    response = _llm().prompt(HELLO, max_tokens=MOST)
    text("".join(response))
    assert response.usage().output


def llm_tools() -> None:
    answered(_llm().chain(HELLO, tools=[weather], options={"max_tokens": 100}).text())


def llm_structured() -> None:
    City.model_validate_json(
        _llm().prompt(HELLO, schema=City, max_tokens=300, temperature=0, stream=False).text()
    )


def llm_errors() -> None:
    raises(Exception, lambda: _llm().prompt(HELLO, max_tokens=0).text())


def llm_thinking() -> None:
    response = _llm("thinking", responses=True, reasoning=True).prompt(HELLO)
    text("".join(event.chunk for event in response.stream_events() if event.type == "reasoning"))


def llm_images() -> None:
    import llm

    def read(look: bool) -> int:
        given = [llm.Attachment(type="image/png", content=picture())] if look else []
        response = _llm("seeing").prompt(HELLO, attachments=given, max_tokens=8, stream=False)
        response.text()
        tokens: int = response.usage().input
        return tokens

    seen(read)


def llm_embeddings() -> None:
    """Only models of OpenAI's have a name there; the address is that of its library."""
    import llm

    os.environ.update(OPENAI_BASE_URL=f"{URL}/v1", OPENAI_API_KEY="none")
    vectors([list(vector) for vector in llm.get_embedding_model("3-small").embed_multi(TEXTS)])


def llm_cancel() -> None:
    def read() -> None:
        pieces = iter(_llm().prompt(STORY, max_tokens=LONG))
        next(piece for piece in pieces if piece)
        pieces.close()

    cancelled(read)


# --- instructor ----------------------------------------------------------------------------------------


def _instructor(mode: str, **options: Any) -> Any:
    import instructor

    client = instructor.from_openai(_openai(), mode=instructor.Mode[mode])
    # At temperature 1 a small model may write white space between the values to the last token.
    given = {"model": "gpt-4o", "messages": MESSAGES, "max_tokens": 300, "temperature": 0, **options}
    return client.chat.completions.create(response_model=City, max_retries=0, **given)


def instructor_whole() -> None:
    assert isinstance(_instructor("TOOLS"), City)


def instructor_stream() -> None:
    import instructor

    client = instructor.from_openai(_openai(), mode=instructor.Mode.JSON_SCHEMA)
    partial = client.chat.completions.create_partial(
        model="gpt-4o", messages=MESSAGES, response_model=City, max_tokens=300
    )
    last = list(partial)[-1]
    assert isinstance(last.big, bool)


def instructor_tools() -> None:
    assert isinstance(_instructor("TOOLS_STRICT"), City)


def instructor_structured() -> None:
    assert isinstance(_instructor("JSON_SCHEMA"), City)


def instructor_errors() -> None:
    raises(Exception, lambda: _instructor("JSON_SCHEMA", max_tokens=0))


# --- pydantic-ai ---------------------------------------------------------------------------------------


def _agent(**options: Any) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(openai_client=_async_openai()))
    return Agent(model, **options)


def _async_openai() -> Any:
    import openai

    return openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


def pydanticai_whole() -> None:
    text(_agent().run_sync(HELLO, model_settings={"max_tokens": MOST}).output)


def pydanticai_stream() -> None:
    async def run() -> None:
        async with _agent().run_stream(HELLO, model_settings={"max_tokens": MOST}) as result:
            pieces = [piece async for piece in result.stream_text(delta=True)]
        text("".join(pieces))

    asyncio.run(run())


def pydanticai_tools() -> None:
    from pydantic_ai import ToolOutput

    answer = _agent(output_type=ToolOutput(City)).run_sync(HELLO, model_settings={"max_tokens": 300})
    assert isinstance(answer.output, City)


def pydanticai_structured() -> None:
    from pydantic_ai import NativeOutput

    answer = _agent(output_type=NativeOutput(City)).run_sync(HELLO, model_settings={"max_tokens": 300})
    assert isinstance(answer.output, City)


def pydanticai_errors() -> None:
    from pydantic_ai.exceptions import ModelHTTPError

    wrong = {"max_tokens": 0}
    asked = lambda: _agent().run_sync(HELLO, model_settings=wrong)  # noqa: E731
    raises(ModelHTTPError, asked, says="max_completion_tokens")


def main(url: str, clients: list[str]) -> None:
    """Run every case of these clients; of all if there are none."""
    global URL  # noqa: PLW0603
    URL = url
    for name, case in list(globals().items()):
        client, _, what = name.partition("_")
        if not client or not what or not callable(case) or (clients and client not in clients):
            continue
        error = None
        try:
            case()
        except Exception:  # noqa: BLE001 - whatever a client raises is what the test is about
            error = traceback.format_exc(limit=-4)
        print(json.dumps({"client": client, "case": what, "error": error}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
