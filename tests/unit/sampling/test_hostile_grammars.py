"""Texts that are no grammars, made to be looked through for ever. Python's `re` cannot be stopped."""

from __future__ import annotations

import subprocess
import sys

import pytest

from foredraft.errors import RequestError
from foredraft.sampling.constraint import compile_constraint
from foredraft.sampling.grammar import MAX_SOURCE
from foredraft.testing import FakeTokenizer
from foredraft.types import Constraint

LARK, GBNF = 'start: "x"\n', 'root ::= "x"\n'
HOSTILE = {
    "quotes": (LARK, '"\\'),
    "slashes": (LARK, "/\\"),
    "angles": (LARK, "<"),
    "braces": (LARK, "a{\n"),
    "brackets": (LARK, "a[\n"),
    "names": (LARK, "a::b"),
    "schemas": (LARK, "%json {"),
    "lines": ("", "aaaa\n"),
    "hashes": (f"{GBNF}a ", "#"),
    "blanks": (f"{GBNF}a", " "),
    "names of GBNF": (GBNF, "a "),
    "repetition": ('root ::= "x"{1,', " "),
    "literals": (GBNF, '"\\'),
    "characters": (GBNF, "[\\"),
    "empty lines": (GBNF, "\r\n"),
}
LOOK = """
import sys
from foredraft.errors import RequestError
from foredraft.sampling.grammar import source_of
from foredraft.types import Constraint
try:
    source_of(Constraint("grammar", sys.stdin.read()))
except RequestError:
    pass
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_looked_through_once(name: str) -> None:
    begin, more = HOSTILE[name]
    text = begin + more * ((MAX_SOURCE - len(begin)) // len(more))
    ran = subprocess.run(
        [sys.executable, "-c", LOOK], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_a_text_without_a_rule_is_left_to_be_refused() -> None:
    with pytest.raises(RequestError, match="grammar cannot be used"):
        compile_constraint(Constraint("grammar", "no rule\nat all\n"), FakeTokenizer())
