"""Chat templates: the helpers that models' templates rely on, and the sandbox that keeps them harmless."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from foredraft.errors import RequestError
from foredraft.templates import chat
from foredraft.templates.chat import ChatTemplate
from foredraft.types import Message

HELLO: Sequence[Message] = [{"role": "user", "content": "Hello"}]


def render(source: str | None, messages: Sequence[Message] = HELLO, **variables: object) -> str:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    return template.render(messages, **variables)


def test_a_model_without_a_template_takes_plain_text_only() -> None:
    with pytest.raises(RequestError, match="no chat template") as caught:
        render(None)
    assert "--raw" in (caught.value.hint or "")


def test_there_must_be_a_message() -> None:
    with pytest.raises(RequestError, match="no messages"):
        render("x", [])


def test_messages_and_variables_reach_the_template() -> None:
    source = "{% for m in messages %}{{ m.role }}={{ m['content'] }};{% endfor %}{{ tools }}"
    assert render(source, tools=7) == "user=Hello;7"


def test_the_sentence_tokens_are_the_model_s() -> None:
    assert render("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}") == "<s>Hello</s>"


def test_blocks_leave_no_blank_lines() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    assert render(source) == "Hello\n"


def test_loops_can_be_left_early() -> None:
    skip, leave = "{% if i == 2 %}{% continue %}{% endif %}", "{% if i > 3 %}{% break %}{% endif %}"
    source = f"{{% for i in range(9) %}}{skip}{leave}{{{{ i }}}}{{% endfor %}}"
    assert render(source) == "013"


def test_a_template_may_refuse_the_messages_in_its_own_words() -> None:
    source = "{{ raise_exception('Roles must alternate') }}"
    with pytest.raises(RequestError, match="Roles must alternate"):
        render(source)


def test_json_is_as_models_know_it() -> None:
    value = {"a": "<b> & 'c' \"d\"", "ü": ["模型", True, None]}
    assert render("{{ value|tojson }}", value=value) == (
        '{"a": "<b> & \'c\' \\"d\\"", "ü": ["模型", true, null]}'
    )
    assert render("{{ value|tojson(indent=2) }}", value=[1]) == "[\n  1\n]"
    assert render("{{ value|tojson(ensure_ascii=True) }}", value="ü") == '"\\u00fc"'
    assert render("{{ value|tojson(separators=(',', ':')) }}", value={"a": [1, 2]}) == '{"a":[1,2]}'
    assert render("{{ value|tojson(true, 1) }}", value={"ü": 1}) == '{\n "\\u00fc": 1\n}'
    assert render("{{ value|tojson(sort_keys=true) }}", value={"b": 1, "a": 2}) == '{"a": 2, "b": 1}'


def test_text_is_not_escaped() -> None:
    assert render("{{ messages[0].content }}", [{"role": "user", "content": "<a href='x'>&"}]) == (
        "<a href='x'>&"
    )


def test_the_date_is_today_s() -> None:
    before = datetime.now().astimezone().date()
    told = datetime.strptime(render("{{ strftime_now('%Y-%m-%d') }}"), "%Y-%m-%d").date()
    assert before <= told <= datetime.now().astimezone().date()


@pytest.mark.parametrize(
    "source",
    [
        "{{ undefined_function() }}",
        "{{ messages[5].content.x }}",
        "{{ 1 / 0 }}",
        "{{ range(10 ** 9)|list }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[0].content|tojson(nonsense=1) }}",
        "{{ messages[0].content + 1 }}",
        "{% include 'other' %}",
        "{% for m in messages %}{{ m.content|round }}{% endfor %}",
    ],
)
def test_whatever_goes_wrong_in_a_template_is_a_request_error(source: str) -> None:
    with pytest.raises(RequestError, match="chat template rejects"):
        render(source)


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ messages[0].__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('echo owned').read() }}",
    "{{ lipsum.__globals__['os'].popen('echo owned').read() }}",
    "{{ raise_exception.__globals__['jinja2'].__builtins__['open']('PATH').read() }}",
    "{{ strftime_now.__globals__['Path']('PATH').read_text() }}",
    "{{ strftime_now.__code__.co_consts }}",
    "{{ (messages|attr('__class__')).mro() }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ '{0.__class__.__mro__}'.format_map({'0': messages}) }}",
    "{{ ''|map(attribute='__class__')|list|first }}",
    "{{ self.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ messages|map('attr', '__class__')|list }}",
    "{% include 'PATH' %}",
    "{% import 'PATH' as x %}{{ x }}",
    "{% extends 'PATH' %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_a_malicious_template_reaches_neither_files_nor_classes(source: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("TOP SECRET")
    try:
        text = render(source.replace("PATH", str(secret)))
    except RequestError:
        text = ""
    # What the sandbox refuses is an error, or undefined and so empty.
    assert not re.search(r"SECRET|owned|class|built-in|function|object", text)
    assert secret.read_text() == "TOP SECRET"


def test_a_template_cannot_change_the_conversation() -> None:
    messages: list[Message] = [{"role": "user", "content": "Hello"}]
    for source in ("{{ messages.append(1) }}", "{{ messages[0].update({'role': 'system'}) }}"):
        with pytest.raises(RequestError):
            render(source, messages)
    assert messages == [{"role": "user", "content": "Hello"}]


# --- what transformers has beyond plain Jinja ----------------------------------------------------------


def test_what_is_marked_as_generated_is_text() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{%- generation -%} {{ m.content }}{{ eos_token }} {%- endgeneration -%}"
        "{% else %}[{{ m.content }}]{% endif %}{% endfor %}"
    )
    assert render(source, [*HELLO, {"role": "assistant", "content": "Hi"}]) == "[Hello]Hi</s>"


def test_what_is_set_where_text_is_generated_stays_there() -> None:
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert render(source) == "21"


def test_a_loop_may_be_left_where_text_is_generated() -> None:
    assert (
        render("{% for i in [1, 2] %}{% generation %}{{ i }}{% break %}{% endgeneration %}{% endfor %}")
        == "1"
    )


def test_tools_and_documents_are_none_where_there_are_none() -> None:
    assert render("{{ tools is none }} {{ documents is none }} {{ tools is defined }}") == "True True True"


@pytest.mark.parametrize("tokens", [{}, {"unk_token": "<unk>", "pad_token": "<pad>"}])
def test_further_tokens_by_the_names_that_transformers_gives_them(tokens: dict[str, str]) -> None:
    template = ChatTemplate("{{ unk_token }}{{ pad_token }}", **tokens)
    assert template.render(HELLO) == "".join(tokens.values())


# --- templates that cannot be used ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% if %}", "line 1: Expected an expression"),
        ("a\n{% nonsense %}", "line 2: Encountered unknown tag 'nonsense'"),
        ("{{ x|nonsense }}", "No filter named 'nonsense'"),
        ("{% generation %}", "line 1: .*endgeneration"),
        ("{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}", "recursion|too many nested"),
        ("{% break %}", "outside loop"),
    ],
)
def test_a_template_that_cannot_be_compiled_is_known_before_it_is_used(source: str, says: str) -> None:
    template = ChatTemplate(source, bos_token="", eos_token="")
    assert re.search(f"cannot be compiled: .*{says}", template.traits.error or "")
    with pytest.raises(RequestError, match=f"chat template cannot be used.*{says}") as caught:
        template.render(HELLO)
    assert "/v1/completions" in (caught.value.hint or "")


# --- values --------------------------------------------------------------------------------------------


class Shouting(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "changed"


class Kind(StrEnum):
    USER = "user"


def test_a_template_gets_plain_values_only() -> None:
    message = MappingProxyType({"role": Kind.USER, "content": Shouting("Hello"), "n": (1, True, None, 0.5)})
    assert render("{{ messages }}", [message]) == (
        "[{'role': 'user', 'content': 'Hello', 'n': [1, True, None, 0.5]}]"
    )


@pytest.mark.parametrize("value", [b"x", object(), {1, 2}, np.array([1])])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(RequestError, match="contains a "):
        render("{{ x }}", x=[value])


def test_values_may_not_be_nested_without_end() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(RequestError, match="nested too deeply"):
        render("{{ x }}", x=value)


# --- kept results --------------------------------------------------------------------------------------


def test_what_was_rendered_lately_is_not_rendered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ x }}", bos_token="")
    assert template.render(HELLO, x=1) == "Hello1"
    monkeypatch.setattr(chat, "_children", None)
    assert template.render([{"role": "user", "content": "Hello"}], x=1) == "Hello1"
    with pytest.raises(TypeError):
        template.render(HELLO, x=2)


def test_little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "_KEPT_CHARACTERS", 10)
    template = ChatTemplate("{{ messages[0].content }}")
    for text in ("a" * 11, "b" * 6, "c" * 5, "d"):
        assert template.render([{"role": "user", "content": text}]) == text
    assert list(template._kept.values()) == ["c" * 5, "d"]
    assert template._kept_characters == 6


def test_a_template_that_asks_for_the_time_is_always_rendered() -> None:
    template = ChatTemplate("{{ strftime_now('%f') }}")
    assert len({template.render(HELLO) for _ in range(20)}) > 1
