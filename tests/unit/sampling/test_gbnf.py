"""GBNF as llama.cpp reads it: escapes, sets of characters, repetition, names, tokens, and what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from foredraft.errors import NoNextTokenError, RequestError
from foredraft.sampling.constraint import compile_constraint
from foredraft.sampling.gbnf import is_gbnf, lark_of
from foredraft.testing import FakeTokenizer
from foredraft.types import Constraint

TOKENIZER = FakeTokenizer()
[END] = TOKENIZER.end_tokens


def accepts(grammar: str, text: str | bytes) -> bool:
    follower = compile_constraint(Constraint("grammar", grammar), TOKENIZER)
    row = np.zeros(258, np.float32)
    try:
        for byte in text.encode() if isinstance(text, str) else text:
            if follower.complete or follower.mask(row)[byte] < 0:
                return False
            follower.advance([byte])
    except NoNextTokenError:
        return False
    return follower.complete or bool(follower.mask(row)[END] == 0)


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (r'root ::= "\u00e9"', ["é"], ["e", r"\u00e9"]),
        (r'root ::= "\U0001F600"', ["😀"], ["x"]),
        (r'root ::= "\xe9\x41"', ["éA"], ["e"]),
        (r'root ::= "\"\\\[\]\-\n\r\t"', ['"\\[]-\n\r\t'], ['"']),
        (r"root ::= [\u0600-\u06FF]+", ["سلام"], ["salam", ""]),
        (r"root ::= [a\-z]+", ["-az"], ["b"]),
        (r"root ::= [-az]+ [az-]", ["-a-"], ["b-"]),
        (r"root ::= [^a\]]", ["b", "é", "\n"], ["a", "]"]),
        (r"root ::= [\]\[/&~]+", ["][/&~"], ["x"]),
        (r'root ::= [^"\\\x7F\x00-\x1F] | "\x00"', ["x", "\x00"], ['"', "\\", "\x7f"]),
        ("root ::= .", ["x", "\n", "é"], ["", "xy"]),
        ('\ufeffroot ::= "a"', ["a"], ["b"]),
        ('root ::= "a"{2} "b"{1,2} "c"{0,} "d"{ 1 , 1 }', ["aabd", "aabbccd"], ["abd", "aad"]),
        ('root ::= ("a" | "b" "c")+ "d"?', ["a", "bcad"], ["d", "b"]),
        ('root ::= ("a"?)* "b"?*', ["", "aab", "bb"], ["ba"]),
        ('root ::= "a" |', ["", "a"], ["b"]),
        ('root ::=\n  # a note\n  x | # another\n  y\nx ::= "x"\ny ::= "y"', ["x", "y"], ["z"]),
        ('root ::= "a" (\n  "b"\n  | "c"\n)\r\n\r\n', ["ab", "ac"], ["a"]),
        ('x ::= "a"\nroot ::= x\nx ::= "b"', ["b"], ["a"]),
        ("root ::= " + "(" * 60 + '"a" root?' + ")" * 60, ["aa"], ["b"]),
        ('root ::= "a" # the end', ["a"], ["b"]),
        ('root ::= "a//b" "#" "%json"', ["a//b#%json"], ["a"]),
    ],
)
def test_what_llama_cpp_reads_is_read_alike(grammar: str, right: list[str], wrong: list[str]) -> None:
    assert is_gbnf(grammar)
    assert [text for text in right if not accepts(grammar, text)] == []
    assert [text for text in wrong if accepts(grammar, text)] == []


def test_names_that_lark_would_take_for_one_are_kept_apart() -> None:
    names = 'foo-bar ::= "1"\nFooBar ::= "2"\nfoo_bar ::= "3" root?\nstart ::= "4"\n1st ::= "5"'
    grammar = f"root ::= foo-bar FooBar foo_bar start 1st\n{names}"
    assert accepts(grammar, "12345")
    assert accepts(grammar, "1231234545")
    assert not accepts(grammar, "1")


def test_a_set_of_no_characters_leaves_no_text() -> None:
    with pytest.raises(RequestError):
        accepts("root ::= []", "")


def test_tokens_are_named_by_their_numbers() -> None:
    grammar = 'root ::= <[97]> !<[98]> "c"'
    assert accepts(grammar, "aac")
    assert not accepts(grammar, "abc")
    assert not accepts(grammar, "bac")


@pytest.mark.parametrize(
    "source", ['start: "a"', 'start: "x ::= y"', '// root ::= "a"\nstart: "b"', "%llguidance {}"]
)
def test_lark_is_not_taken_for_gbnf(source: str) -> None:
    assert not is_gbnf(source)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('root ::= ("a"', r"Expected '\)', at its end"),
        ('root ::= "a")', r"no '\(' to the '\)', at line 1"),
        ('root ::= ("a"\nb ::= "c"', r"Expected '\)', at line 2"),
        ("root ::= a", "The rule 'a' is not defined"),
        ('a ::= "a"', "no rule 'root'"),
        ('root ::= "a\n\nb ::= c', "has a syntax error, at line 1"),
        (r'root ::= "\q"', r"no escape \\q"),
        (r'root ::= "\u12"', "escape|hexadecimal"),
        (r'root ::= "\u12fg"', "Expected 4 hexadecimal digits instead of '12fg'"),
        (r'root ::= "\ud800"', r"U\+D800 is not a character"),
        (r'root ::= "\Uffffffff"', r"U\+FFFFFFFF is not a character"),
        ("root ::= [b-a]", "range b-a is empty"),
        ("root ::= *", "nothing to repeat"),
        ('root ::= "a"\n*', "nothing to repeat, at line 2"),
        ('root ::= "a"\n|', "Expected a rule's name"),
        ('root ::= "a"\n(', "Expected a rule's name"),
        ('root ::= "a" | *', "nothing to repeat"),
        ('root ::= "a"{x}', "syntax error"),
        ('root ::= "a"\n"b"', "Expected a rule's name"),
        ("root ::= <think>", "has a syntax error, at line 1, '<think>'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(grammar: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        lark_of(grammar)
    assert "README" in str(caught.value.hint)


def test_a_long_grammar_is_translated_in_no_time() -> None:
    """Its cost grows with its length, not with the square of that."""
    rules = "".join(f'rule{i} ::= "{i}" | [a-z]+ rule{i + 1}?\n' for i in range(20_000))
    assert lark_of(f"root ::= rule0\n{rules}rule20000 ::= root").count("\n") == 20_002
