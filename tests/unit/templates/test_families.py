"""Every conversation that the APIs take, through templates of every family: nothing is refused or lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

import chat_templates as families
from claude_server import TemplateTokenizer
from foredraft.engine.prompt import encode_prompt
from foredraft.errors import RequestError
from foredraft.server.openai.tool_use import tool_use
from foredraft.templates.chat import ChatTemplate
from foredraft.templates.traits import TemplateTraits

TOKENIZERS = {name: TemplateTokenizer(source) for name, source in families.FAMILIES.items()}
everywhere = pytest.mark.parametrize("family", TOKENIZERS)

TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Adds numbers.", "parameters": None}}
]


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def answer(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def calls(*ids: str, content: Any = None) -> dict[str, Any]:
    function = {"name": "add", "arguments": '{"a": 1}'}
    made = [{"id": call, "type": "function", "function": function} for call in ids]
    return {"role": "assistant", "content": content, "tool_calls": made}


def result(call: str, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": content}


RESULT = [user("u1"), calls("c1"), result("c1", "r1")]
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "a question": [user("u1")],
    "parts": [user(parts("u1", "u2"))],
    "a system prompt": [system("s1"), user("u1")],
    "a system prompt in parts": [system(parts("s1", "s2")), user(parts("u1"))],
    "two system prompts": [system("s1"), system("s2"), user("u1")],
    "a system prompt in the middle": [user("u1"), answer("a1"), system("s1"), user("u2")],
    "a system prompt at the end": [user("u1"), answer("a1"), user("u2"), system("s1")],
    "a system prompt alone": [system("s1")],
    "turns": [user("u1"), answer(parts("a1")), user("u2")],
    "two questions": [user("u1"), user("u2")],
    "two answers": [user("u1"), answer("a1"), answer("a2"), user("u2")],
    "a result": RESULT,
    "a result in parts": [user("u1"), calls("c1"), result("c1", parts("r1", "r2"))],
    "a result of nothing": [user("u1"), calls("c1"), result("c1", None)],
    "a result, then a question in parts": [*RESULT, user(parts("u2", "u3"))],
    "results, then a question": [
        user("u1"), calls("c1", "c2"), result("c1", "r1"), result("c2", "r2"), user("u2"),
    ],
    "a result and an answer": [*RESULT, answer("a1"), user("u2")],
    "calls one after another": [*RESULT, calls("c2"), result("c2", parts("r2"))],
    "a system prompt and results": [
        system("s1"), user("u1"), calls("c1"), result("c1", parts("r1")), user(parts("u2")),
    ],
}  # fmt: skip


def texts(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    found: list[str] = []
    for message in messages:
        content = message["content"]
        found += [content] if isinstance(content, str) else [part["text"] for part in content or ()]
    return found


@everywhere
@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
def test_every_conversation_is_told_whole(family: str, name: str, tools: Any) -> None:
    messages = CONVERSATIONS[name]
    use = tool_use(TOKENIZERS[family], tools, None, parallel=True)
    prompt = bytes(use.encode(messages)[1].tokens).decode()
    said = [prompt.find(text) for text in texts(messages)]
    assert -1 not in said
    assert ("Adds numbers." in prompt) is (tools is not None)
    told_elsewhere = family in ("gemma", "mistral") or "system" in name
    assert told_elsewhere or all(first < second for first, second in pairwise(said))


@everywhere
def test_python_s_own_messages_too(family: str) -> None:
    for name, messages in CONVERSATIONS.items():
        if not any("tool_calls" in message for message in messages):
            prompt = bytes(encode_prompt(TOKENIZERS[family], messages).tokens).decode()
            assert all(text in prompt for text in texts(messages)), name


def test_what_the_template_does_not_know_is_told_before_the_user_s_words() -> None:
    use = tool_use(TOKENIZERS["gemma"], TOOLS, None, parallel=True)
    _, prompted = use.encode([system("Be brief."), user(parts("one", "two")), user("three")])
    prompt = bytes(prompted.tokens).decode()
    assert prompt.startswith("<start_of_turn>user\nBe brief.\n\nThese functions can be called")
    assert prompt.endswith("\n\none\ntwo\nthree<end_of_turn>\n<start_of_turn>model\n")


def test_a_result_and_the_next_question_are_one_turn_where_turns_alternate() -> None:
    messages = CONVERSATIONS["a result, then a question in parts"]
    use = tool_use(TOKENIZERS["gemma"], None, None, parallel=True)
    told = bytes(use.encode(messages)[1].tokens).decode()
    assert told == (
        "<start_of_turn>user\nu1<end_of_turn>\n<start_of_turn>model\n"
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><end_of_turn>\n'
        "<start_of_turn>user\n<tool_response>\nr1\n</tool_response>\nu2\nu3<end_of_turn>\n<start_of_turn>model\n"
    )
    use = tool_use(TOKENIZERS["mistral"], TOOLS, None, parallel=True)
    told = bytes(use.encode(messages)[1].tokens).decode()
    assert '{"content": "r1\\nu2\\nu3", "call_id": ' in told


def test_who_speaks_first_cannot_be_made_up() -> None:
    with pytest.raises(RequestError, match="must alternate"):
        encode_prompt(TOKENIZERS["gemma"], [answer("a1"), user("u1")])


@pytest.mark.parametrize(
    ("family", "system_role", "alternates", "typed"),
    [
        ("gemma", "nowhere", True, False),
        ("mistral", "first", True, False),
        ("llama3", "anywhere", False, False),
        ("chatml", "anywhere", False, False),
        ("phi", "anywhere", False, False),
        ("typed", "anywhere", False, True),
    ],
)
def test_what_templates_can_do_is_found_by_trying(
    family: str, system_role: str, alternates: bool, typed: bool
) -> None:
    traits = TOKENIZERS[family].template_traits
    assert (traits.system, traits.alternates, traits.typed) == (system_role, alternates, typed)
    assert ("tools" in traits.variables) is (family in ("mistral", "llama3", "chatml"))


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("{%- if tools %}x{% endif %}", True),
        ("{% for tool in tools %}{{ tool | tojson }}{% endfor %}", True),
        ("{{ '[AVAILABLE_TOOLS]' + tools|string }}", True),
        ("{% if x\n  and tools is not none %}{% endif %}", True),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}", True),
        ("{% set tools = tools or [] %}{{ tools }}", True),
        ("{% macro f() %}{{ tools }}{% endmacro %}{{ f() }}", True),
        ("{% generation %}{{ tools }}{% endgeneration %}", True),
        ("{{ messages }}", False),
        ("You have tools.", False),
        ("{{ 'no tools here' }}", False),
        ('{{ "tools \\" tools" }}', False),
        ("{# if tools #}{{ messages }}", False),
        ("{% if builtin_tools %}{% endif %}", False),
        ("{% if message.tools %}{% endif %}", False),
        ("{% set tools = [] %}{{ tools }}", False),
        ("", False),
    ],
)
def test_whether_a_template_reads_a_variable(source: str, reads: bool) -> None:
    assert ("tools" in ChatTemplate(source).traits.variables) is reads


def test_a_template_that_leaves_the_system_prompt_out_in_silence_has_no_place_for_it() -> None:
    source = "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }};{% endfor %}"
    tokenizer = TemplateTokenizer(source)
    assert tokenizer.template_traits.system == "nowhere"
    prompt = bytes(encode_prompt(tokenizer, [system("Be brief."), user("Hi")]).tokens).decode()
    assert prompt == "user: Be brief.\n\nHi;"


def test_a_template_that_refuses_everything_is_taken_as_it_is() -> None:
    tokenizer = TemplateTokenizer("{{ raise_exception('never') }}")
    assert tokenizer.template_traits.error is None
    with pytest.raises(RequestError, match="rejects these messages: never"):
        encode_prompt(tokenizer, [user("Hi")])
    assert ChatTemplate(None).traits == TemplateTraits()


def test_the_texts_that_a_template_compares_with_are_plain_and_its_own() -> None:
    traits = ChatTemplate("{% if x == 'none'|e or x == 'a' * 3 %}{{ 'b' ~ 'c' }}{% endif %}text").traits
    assert traits.literals == {"none", "a", "b", "c"}
    assert {type(text) for text in traits.literals} == {str}
