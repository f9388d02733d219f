"""Templates that want more time, memory or room than a prompt needs: each costs one request, nothing else."""

from __future__ import annotations

import logging
import time

import pytest

from foredraft.errors import ChildTimeoutError, RequestError
from foredraft.templates import chat
from foredraft.templates.chat import ChatTemplate
from foredraft.templates.traits import TemplateTraits
from matrix import nightly

HELLO = [{"role": "user", "content": "Hello"}]

ONLY_FOR_STOP = "{% if messages[0].content == 'stop' %}BODY{% else %}{{ messages[0].content }}{% endif %}"
"""So that a template is found to be fine when it is first looked at."""

LOOP = "{% for a in r %}{% for b in r %}{% for c in r %}BODY{% endfor %}{% endfor %}{% endfor %}"
GROW = "{% set ns = namespace(x=FIRST) %}{% for i in range(99) %}{% set ns.x = NEXT %}{% endfor %}"


def grow(first: str, then: str) -> str:
    return GROW.replace("FIRST", first).replace("NEXT", then)


DEMANDS = {
    "a repeated text": "{{ ('a' * 1000000000 * n)|length }}",
    "a repeated list": "{{ ([0] * 1000000000 * n)|length }}",
    "a repeated tuple": "{{ ((0,) * 1000000000 * n)|length }}",
    "center": "{{ ('a'|center(1000000000 * n))|length }}",
    "ljust": "{{ 'a'.ljust(10000000000 * n)|length }}",
    "zfill": "{{ 'a'.zfill(10000000000 * n)|length }}",
    "indent": "{{ ('a\n' * 1000)|indent(1000000 * n)|length }}",
    "join": "{{ range(99999)|join('a' * 100000 * n)|length }}",
    "replace": "{{ ('a' * 100000).replace('a', 'b' * 100000 * n)|length }}",
    "batch": "{{ (range(10)|batch(1000000000 * n, 'x')|list)|length }}",
    "slice": "{{ (range(10)|slice(1000000000 * n, 'x')|list)|length }}",
    "a format's width": "{{ ('%1000000000d'|format(n))|length }}",
    "the width of a format method": "{{ '{:1000000000}'.format(n)|length }}",
    "ranges in ranges": "{% set r = range(99999 * n) %}" + LOOP.replace("BODY", ""),
    "recursion": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(n) }}",
    "a recursive loop": "{% for x in [[1] * 9] * 9 recursive %}{{ loop([x, x]) }}{% endfor %}",
    "a power": "{{ (10 ** (1000000000 * n)) > 5 }}",
    "a power of powers": "{{ (9 ** (9 ** (9 * n))) > 5 }}",
    "squares": grow("2", "ns.x * ns.x"),
    "doubled texts": grow("'ab'", "ns.x + ns.x"),
    "doubled lists": grow("[0]", "ns.x + ns.x"),
    "output without end": "{% set r = range(99999 * n) %}" + LOOP.replace("BODY", "{{ 'a' * 999 }}"),
    "one large output": "{{ 'ab' * 5000000 * n }}",
    "map": "{{ range(99999)|map('string')|map('center', 99999 * n)|join|length }}",
    "sort": "{{ (range(99999)|list * 900 * n)|sort|length }}",
    "wordwrap": "{{ ('a ' * 10000000 * n)|wordwrap(1)|length }}",
    "lipsum": "{{ lipsum(n=9999999 * n)|length }}",
    "tojson": "{{ ([['a'] * n * 1000] * 100000)|tojson|length }}",
    "pprint": "{{ ([['a'] * n * 1000] * 100000)|pprint|length }}",
    "urlize": "{{ ('a.com ' * n * 10000000)|urlize|length }}",
}


SLOW = {"a power of powers", "squares", "wordwrap", "lipsum", "pprint", "slice"}
"""They run into the limit of 2 s, as others do that quick runs have."""


@pytest.mark.parametrize(
    "body",
    [pytest.param(body, id=name, marks=nightly if name in SLOW else ()) for name, body in DEMANDS.items()],
)
def test_what_a_template_demands_is_bounded(body: str, caplog: pytest.LogCaptureFixture) -> None:
    source = "{% set n = messages|length %}" + ONLY_FOR_STOP.replace("BODY", body)
    template = ChatTemplate(source)
    assert template.traits.error is None
    begun = time.monotonic()
    with pytest.raises(RequestError, match="The model's chat template"), caplog.at_level(logging.WARNING):
        template.render([{"role": "user", "content": "stop"}])
    assert time.monotonic() - begun < 60
    assert len(caplog.records) <= 1
    assert template.render(HELLO) == "Hello", "the next conversation is none the worse for it"


@pytest.mark.parametrize(
    "body",
    [
        "{{ 'a' * 1000000000000 }}",
        pytest.param("{{ (10 ** 1000000000) > 5 }}", marks=nightly),
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% if x %}" * 5000 + "{% endif %}" * 5000,
        "{{ " + "-" * 100_000 + "1 }}",
        "{{ " + "[" * 100_000 + "]" * 100_000 + " }}",
        "{{ '" + "%s" * 10 + "'|format(" + ", ".join(["'a' * 1000000000"] * 10) + ") }}",
    ],
)
def test_a_template_that_passes_its_bounds_when_it_is_looked_at_is_not_used(body: str) -> None:
    template = ChatTemplate(body)
    assert template.traits.error
    begun = time.monotonic()
    for _ in range(100):
        with pytest.raises(RequestError, match="chat template cannot be used"):
            template.render(HELLO)
    assert time.monotonic() - begun < 5, "it is not run again"


def test_the_log_has_a_line_for_a_template_that_was_stopped(caplog: pytest.LogCaptureFixture) -> None:
    body = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    template = ChatTemplate(ONLY_FOR_STOP.replace("BODY", body))
    with pytest.raises(
        RequestError, match=r"exceeded its limits with these messages\. It takes longer than 2 s"
    ):
        template.render([{"role": "user", "content": "stop"}])
    assert [record.message for record in caplog.records] == [
        "A chat template was stopped: It takes longer than 2 s."
    ]


@pytest.mark.parametrize("transient", [True, False])
def test_only_what_a_template_did_itself_is_kept(transient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        calls = 0

        def call(self, *arguments: object, **options: float) -> object:
            Failing.calls += 1
            if Failing.calls <= 2:
                error = ChildTimeoutError("It takes longer than 2 s.")
                error.transient = transient
                raise error
            return {"system": "first"}

    monkeypatch.setattr(chat, "_children", Failing)
    template = ChatTemplate("x")
    assert template.traits.error == "It takes longer than 2 s."
    assert template.traits.error == (None if transient else "It takes longer than 2 s.")
    assert template.traits is template.traits


def test_a_machine_that_stalled_once_does_not_decide_about_a_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stalled:
        calls = 0

        def call(self, *arguments: object, **options: float) -> object:
            Stalled.calls += 1
            if Stalled.calls == 1:
                raise ChildTimeoutError("It takes longer than 2 s.")
            return {"system": "first"}

    monkeypatch.setattr(chat, "_children", Stalled)
    assert ChatTemplate("x").traits == TemplateTraits(system="first")
