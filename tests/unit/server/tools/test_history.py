"""Earlier calls and results, for templates with tools and without."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import pytest
from pydantic import ValidationError

from foredraft.errors import RequestError
from foredraft.server.openai.response_input import FunctionCall
from foredraft.server.tools.choice import Tool
from foredraft.server.tools.deepseek import DEEPSEEK
from foredraft.server.tools.hermes import HERMES
from foredraft.server.tools.history import plain_messages, template_messages
from foredraft.server.tools.llama3 import LLAMA3
from foredraft.server.tools.mistral import MISTRAL
from foredraft.server.tools.prompt import tools_prompt, with_tools
from tool_cases import called, read


def call(call_id: str, name: str = "add", arguments: object = '{"a": 1}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls: dict[str, Any], content: object = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(call_id: str, content: object = "2") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


USER = {"role": "user", "content": "go"}


def test_arguments_become_objects_and_results_get_their_functions_name() -> None:
    messages = [USER, assistant(call("c1")), result("c1")]
    before = json.dumps(messages)
    assert template_messages(messages, HERMES) == [
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "2"},
    ]
    assert json.dumps(messages) == before, "the client's messages are left alone"


@pytest.mark.parametrize("calls", [None, []])
def test_no_calls_leave_no_key(calls: object) -> None:
    message = {"role": "assistant", "content": "hi", "tool_calls": calls}
    assert template_messages([message], HERMES) == [{"role": "assistant", "content": "hi"}]


@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_no_arguments(arguments: object) -> None:
    prepared = template_messages([assistant(call("c", arguments=arguments))], HERMES)
    assert prepared[0]["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ("{", {}),
        ('{"a": 1, "b"', {"a": 1}),
        ('{"q":"x",', {"q": "x"}),
        ('{"city": "Os', {"city": "Os"}),
        ('{"a": tru', {}),
        ('{"a": "\\ud83', {"a": ""}),
    ],
)
def test_of_arguments_that_were_cut_short_what_is_complete_is_taken(arguments: str, given: object) -> None:
    prepared = template_messages([assistant(call("c", arguments=arguments)), result("c")], HERMES)
    assert prepared[0]["tool_calls"][0]["function"]["arguments"] == given


@pytest.mark.parametrize(
    "arguments",
    ['{"a":' + "[" * 100_000, '{"a":' + "1" * 5000 + "}", '{"a": 1e999}', '{"a": "\\ud83d"}', '{"a": oops}'],
)
def test_arguments_that_nobody_can_read_are_one_text(arguments: str) -> None:
    prepared = template_messages([assistant(call("c", arguments=arguments))], HERMES)
    assert prepared[0]["tool_calls"][0]["function"]["arguments"] == {"arguments": arguments}


def test_other_messages_pass_unchanged() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y"},
    ]
    assert template_messages(messages, HERMES) == messages


def test_mistral_gets_short_ids_that_match() -> None:
    long = "call_0123456789abcdef01234567"
    prepared = template_messages([assistant(call(long)), result(long)], MISTRAL)
    given = prepared[0]["tool_calls"][0]["id"]
    assert len(given) == 9
    assert prepared[1]["tool_call_id"] == given


def test_llama_gets_one_call_a_message_with_its_result() -> None:
    messages = [
        USER,
        assistant(call("c1"), call("c2", "now", "{}"), content="so"),
        result("c2", "noon"),
        result("c1", "2"),
        USER,
    ]
    prepared = template_messages(messages, LLAMA3)
    assert [message["role"] for message in prepared] == [
        "user", "assistant", "tool", "assistant", "tool", "user",
    ]  # fmt: skip
    assert [len(message.get("tool_calls", ())) for message in prepared] == [0, 1, 0, 1, 0, 0]
    assert [message["content"] for message in prepared if message["role"] == "tool"] == ["2", "noon"]
    assert len(template_messages(messages, HERMES)) == len(messages)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (
            [assistant(call("c", arguments="a: 1"))],
            r"messages\[0\]\.tool_calls\[0\]\.function\.arguments is not",
        ),
        ([assistant(call("c", arguments="[1]"))], "is not a JSON object"),
        ([assistant(call("c", arguments=3))], "is not a JSON object"),
        ([assistant({"id": "c"})], r"tool_calls\[0\] is not a function call"),
        ([{"role": "assistant", "tool_calls": ["c"]}], "is not a function call"),
        ([{"role": "assistant", "tool_calls": "c"}], "is not a list"),
        ([assistant({"function": {"name": "f"}})], "has no id or no function name"),
        ([assistant({"id": "c", "function": {}})], "has no id or no function name"),
        ([USER, result("c")], r"messages\[1\]\.tool_call_id is 'c', but no earlier message has this call"),
        ([{"role": "tool", "content": "2"}], "tool_call_id is None"),
    ],
)
def test_wrong_history_is_named(messages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        template_messages(messages, HERMES)
    with pytest.raises(RequestError, match=message):
        plain_messages(messages, [])


def test_without_tool_support_calls_and_results_are_text() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        USER,
        assistant(call("c1"), call("c2"), content="Adding."),
        result("c1", "2"),
        result("c2", "3"),
        {"role": "user", "content": "and?"},
    ]
    plain = plain_messages(messages, [Tool("add", "Adds.")])
    assert [message["role"] for message in plain] == ["system", "user", "assistant", "user"]
    assert plain[0]["content"] == "Be brief.\n\n" + tools_prompt([Tool("add", "Adds.")])
    assert plain[2].keys() == {"role", "content"}
    said = read(HERMES, plain[2]["content"])
    assert said.text == "Adding.\n"
    assert called(said) == [("add", '{"a": 1}')] * 2
    assert plain[3]["content"] == (
        "<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>\nand?"
    )


def test_results_at_the_end_are_the_users_turn() -> None:
    plain = plain_messages([USER, assistant(call("c")), result("c")], [])
    assert [message["role"] for message in plain] == ["user", "assistant", "user"]
    assert plain[2]["content"] == "<tool_response>\n2\n</tool_response>"


def test_results_before_another_answer_are_a_turn_of_their_own() -> None:
    plain = plain_messages([assistant(call("c")), result("c"), {"role": "assistant", "content": "ok"}], [])
    assert [message["role"] for message in plain] == ["assistant", "user", "assistant"]


def test_a_system_message_is_made_where_there_is_none() -> None:
    assert plain_messages([USER], [Tool("add")]) == [
        {"role": "system", "content": tools_prompt([Tool("add")])},
        USER,
    ]
    assert plain_messages([USER], []) == [USER]
    empty = plain_messages([{"role": "system", "content": ""}], [Tool("add")])
    assert empty == [{"role": "system", "content": tools_prompt([Tool("add")])}]


def test_the_prompt_shows_every_tool_and_an_example_that_parses() -> None:
    tools = [Tool("add", "Größe"), Tool("now")]
    prompt = tools_prompt(tools)
    lines = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0].splitlines()
    assert [json.loads(line) for line in lines] == [tool.as_message() for tool in tools]
    assert "Größe" in prompt
    assert [name for name, _ in called(read(HERMES, prompt, ["the function"]))] == ["the function"]


def test_arguments_are_text_for_a_template_that_prints_them_as_they_are() -> None:
    [message] = template_messages(
        [assistant(call("c", arguments='{"a": "é"'))], DEEPSEEK, text_arguments=True
    )
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a": "é"}'


def test_tools_on_the_system_message() -> None:
    described = json.dumps([{"name": "add", "parameters": {"type": "object", "properties": {}}}])
    assert with_tools([USER], [Tool("add")]) == [{"role": "system", "content": "", "tools": described}, USER]
    told = with_tools([{"role": "system", "content": "Be brief."}, USER], [Tool("add")])
    assert told == [{"role": "system", "content": "Be brief.", "tools": described}, USER]
    assert with_tools([USER], []) == [USER]


@pytest.mark.parametrize("arguments", ["", "{", '{"q":"x",', '{"a": 1e999}', '{"a": "\\ud83d"}', '{"a": {}}'])
def test_responses_take_back_what_they_gave(arguments: str) -> None:
    item = {"type": "function_call", "call_id": "c", "name": "add", "status": "incomplete"}
    assert FunctionCall.model_validate({**item, "arguments": arguments}).arguments == arguments
    with pytest.raises(ValidationError, match="text of a JSON object"):
        FunctionCall.model_validate({**item, "arguments": f"x{arguments}"})


TEMPLATE = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}"""


def test_a_template_writes_what_the_parser_reads() -> None:
    prepared = template_messages([assistant(call("c1"), call("c2", "now", "{}"))], HERMES)
    prompt = jinja2.Environment(autoescape=False).from_string(TEMPLATE).render(messages=prepared)
    assert called(read(HERMES, prompt)) == [("add", '{"a": 1}'), ("now", "{}")]
