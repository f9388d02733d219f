"""Random chat templates, most of them programs that want far too much, and random conversations in them."""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Callable

import pytest

import chat_templates as families
from claude_server import TemplateTokenizer
from foredraft.engine.prompt import encode_prompt
from foredraft.errors import RequestError
from foredraft.templates.chat import ChatTemplate

# N is any number, X any expression.
FILTERS = [
    "trim",
    "upper",
    "length",
    "list",
    "string",
    "tojson",
    "join",
    "first",
    "last",
    "sort",
    "unique",
    "reverse",
    "title",
    "wordcount",
    "striptags",
    "urlize",
    "pprint",
    "items",
    "batch(N)",
    "slice(N)",
    "center(N)",
    "indent(N)",
    "truncate(N)",
    "wordwrap(N)",
    "round",
    "int",
    "float",
    "abs",
    "sum",
    "random",
    "replace('a',X)",
    "format(X)",
    "default(X)",
    "map('string')",
    "select",
    "reject",
    "groupby(0)",
    "dictsort",
    "tojson(indent=N)",
    "e",
    "urlencode",
    "xmlattr",
]
METHODS = [
    "split()",
    "strip()",
    "upper()",
    "title()",
    "zfill(N)",
    "ljust(N)",
    "center(N)",
    "replace('a',X)",
    "count('a')",
    "encode()",
    "format(X)",
    "join(X)",
    "splitlines()",
    "expandtabs(N)",
    "items()",
    "keys()",
    "translate(X)",
    "index(X)",
    "bit_length()",
    "hex()",
    "startswith('a')",
    "partition('a')",
]
NAMES = [
    "messages",
    "messages[0]",
    "messages[0].content",
    "tools",
    "documents",
    "x",
    "loop",
    "ns",
    "bos_token",
    "add_generation_prompt",
]
CALLS = [
    "range(N)",
    "lipsum(n=N)",
    "dict(a=X)",
    "namespace(a=X)",
    "cycler(X,X)",
    "joiner(X)",
    "raise_exception(X)",
    "strftime_now(X)",
    "m(X)",
]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and", "or"]
VALUES = [
    "(X|OP|X)",
    "(X)|FILTER",
    "(X).METHOD",
    "CALL",
    "[X,X]",
    "{'a':X,N:X}",
    "(X)[X:X]",
    "(X|if|X|else|X)",
    "NAME",
]
BLOCKS = [
    "{% for x in X %}B{% endfor %}",
    "{% for x in X recursive %}{{ loop([x, x]) }}{% endfor %}",
    "{% if X %}B{% else %}B{% endif %}",
    "{% set x = X %}B",
    "{% set ns.x = X %}B",
    "{% macro m(x) %}B{{ m(x) }}{% endmacro %}B",
    "{% generation %}B{% endgeneration %}",
    "{% filter FILTER %}B{% endfilter %}",
    "{% with y = X %}B{% endwith %}",
    "{{ X }}B",
    "BB",
]
BROKEN = ["{% break %}", "{% include 'a' %}", "{% if %}", "{#", "{% raw %}", "{{ '"]
HUGE = (2**31, 2**63, 10**9, 10**7, 99_999)


def number(rng: random.Random) -> str:
    return str(rng.choice((rng.randrange(5), rng.randrange(1000), -1, rng.choice(HUGE))))


def value(rng: random.Random, depth: int) -> str:
    """An expression."""
    if depth <= 0:
        return rng.choice([number(rng), "'a%s{}'", "[]", "{}", "none", "true", rng.choice(NAMES)])
    return filled(rng, rng.choice(VALUES).replace("|if|", " if ").replace("|else|", " else "), depth)


def filled(rng: random.Random, shape: str, depth: int) -> str:
    """A shape with something in each hole."""
    holes: list[tuple[str, Callable[[], str]]] = [
        ("FILTER", lambda: rng.choice(FILTERS)),
        ("METHOD", lambda: rng.choice(METHODS)),
        ("CALL", lambda: rng.choice(CALLS)),
        ("NAME", lambda: rng.choice(NAMES)),
        ("|OP|", lambda: f" {rng.choice(OPERATORS)} "),
        ("N", lambda: number(rng)),
        ("X", lambda: value(rng, depth - 1 - rng.randrange(2))),
        ("B", lambda: block(rng, depth - 1)),
    ]
    for hole, made in holes:
        first, *rest = shape.split(hole)
        shape = "".join([first, *(made() + part for part in rest)])
    return shape


def block(rng: random.Random, depth: int) -> str:
    """Statements and text."""
    if depth <= 0:
        return rng.choice(["text ", "{{ " + value(rng, rng.randrange(4)) + " }}", "<|im_end|>"])
    broken = rng.choice(BROKEN) if rng.random() < 0.02 else ""
    return broken + filled(rng, rng.choice(BLOCKS), depth)


def template(rng: random.Random) -> str:
    """Statements, sometimes in the middle of a family's template."""
    source = block(rng, rng.randrange(1, 5))
    if rng.random() < 0.3:
        other = rng.choice(list(families.FAMILIES.values()))
        cut = rng.randrange(len(other))
        source = other[:cut] + source + other[cut:]
    return source


def conversation(rng: random.Random) -> list[dict[str, object]]:
    texts = ["Hello", "", "<|im_end|>", "a" * 1000, "{{ 1 }}", "\0", "\ue000"]
    roles = ["user", "assistant", "system", "user"]
    return [{"role": rng.choice(roles), "content": rng.choice(texts)} for _ in range(rng.randrange(1, 5))]


@pytest.mark.skipif(sys.platform == "win32", reason="memory is not bounded there")
def test_no_template_takes_more_than_it_may(seconds: float) -> None:
    rng = random.Random()
    ends = time.monotonic() + seconds
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tried = used = refused = 0
    while time.monotonic() < ends:
        source = template(rng)
        begun = time.monotonic()
        tokenizer = TemplateTokenizer(source)
        tried += 1
        used += tokenizer.template_traits.error is None
        for _ in range(3):
            try:
                encode_prompt(tokenizer, conversation(rng))
            except RequestError:
                refused += 1
            except Exception as error:
                error.add_note(source)
                raise
        assert time.monotonic() - begun < 120, source
        assert ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": "a"}]) == "a"
    print(f"{tried} templates, {used} that can be used, {refused} conversations refused")
    assert tried > seconds / 60
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 << 10, f"this process has grown by {grown} kB"
