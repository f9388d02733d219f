"""Chat templates: the helpers that models' templates rely on, and the sandbox that keeps them harmless."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from foredraft.backends.chat_template import ChatTemplate
from foredraft.errors import RequestError
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
    assert render("{{ value|tojson(ensure_ascii=True) }}", value="ü") == '"ü"'
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
        "{% if %}",
        "{{ undefined_function() }}",
        "{{ messages[5].content.x }}",
        "{{ 1 / 0 }}",
        "{{ range(10 ** 9)|list }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[0].content|tojson(nonsense=1) }}",
        "{{ messages[0].content + 1 }}",
        "{% include 'other' %}",
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


def test_a_template_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ messages[0].content }}", bos_token="", eos_token="")
    first = template.render(HELLO)
    monkeypatch.delattr("jinja2.Environment.from_string")
    assert template.render([{"role": "user", "content": "Again"}]) == "Again" != first
