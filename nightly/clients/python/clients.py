"""Python's clients against a server: whole answers, streams, tools, structured output and errors of each.

    python clients.py http://127.0.0.1:8080 [CLIENT]…

Prints one JSON line a case: {"client", "case", "error"}. The names of the functions are client and case.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Callable
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


# --- litellm -------------------------------------------------------------------------------------------


def _litellm(provider: str, **options: Any) -> Any:
    import litellm

    litellm.suppress_debug_info = True
    base = URL if provider == "anthropic" else f"{URL}/v1"
    given = {"messages": MESSAGES, "max_tokens": MOST, "num_retries": 0, **options}
    return litellm.completion(model=f"{provider}/default", api_base=base, api_key="none", **given)


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


# --- instructor ----------------------------------------------------------------------------------------


def _instructor(mode: str, **options: Any) -> Any:
    import instructor

    client = instructor.from_openai(_openai(), mode=instructor.Mode[mode])
    given = {"model": "gpt-4o", "messages": MESSAGES, "max_tokens": 300, **options}
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
