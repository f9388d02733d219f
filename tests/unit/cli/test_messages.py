"""No message of the command line shows Python: no tuples, no names of classes or types, no escapes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command_line import Command

PYTHON = re.compile(
    r"\('|',\)|\bNone\b|\bTrue\b|\bFalse\b|<class|PosixPath|Errno|Error\(|\bdict\b|\bstr\b|\bint\b|\bfloat\b"
    r"|\bNoneType\b|\\x|\\u|\\n|integer range|float range|Traceback"
)
"""`Error: ` itself is how a message begins."""


WRONG = [
    ("run", "--stop", ""),
    ("run", "--stop", "a", "--stop", "", "Hi"),
    ("run", "--temp", "hot", "Hi"),
    ("run", "--temp", "-1", "Hi"),
    ("run", "--top-p", "1.5", "Hi"),
    ("run", "--top-k", "0.5", "Hi"),
    ("run", "--repetition-penalty", "0", "Hi"),
    ("run", "--seed", "one", "Hi"),
    ("run", "-n", "0", "Hi"),
    ("run", "-n", "", "Hi"),
    ("run", "--logprobs", "21", "--json", "Hi"),
    ("run", "-t", "513", "Hi"),
    ("run", "--kv-type", "", "Hi"),
    ("run", "--speculate", "it's", "Hi"),
    ("run", "--speculate", "suffix:max=", "Hi"),
    ("run", "--speculate", "suffix:max=many", "Hi"),
    ("run", "--speculative-config", "[]", "Hi"),
    ("run", "--speculative-config", '{"method": null}', "Hi"),
    ("run", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": true}', "Hi"),
    ("run", "--speculative-config", '{"method": {}, "x": 1}', "Hi"),
    ("run", "--spec-type", "a,b", "Hi"),
    ("run", "-md", "none.gguf", "Hi"),
    ("run", "-m", "no\u00a0such", "Hi"),
    ("run", "-m", "it's", "Hi"),
    ("run", "-m", "x" * 300, "Hi"),
    ("run", "-m", "~nobody-of-this-name/m.gguf", "Hi"),
    ("run", "-m", "", "Hi"),
    ("run", "one", "two", "three"),
    ("run", "-f", "none.txt"),
    ("run", "Hi", "--prediction", "none.txt"),
    ("run", "Hi", "--record", "/"),
    ("run", "--compare", "--speculate", "off", "Hi"),
    ("run", "--nonesuch"),
    ("chat", "--ctx", "many"),
    ("chat", "one", "-m", "two"),
    ("serve", "--port", "70000"),
    ("serve", "--port", "http"),
    ("serve", "--prefix-cache-gb", "inf"),
    ("serve", "--config", "none.toml"),
    ("serve", "-m", "none.gguf"),
    ("bench", "--limit", "0"),
    ("bench", "--temperature", "nan"),
    ("bench", "--replay", "none.json"),
    ("profile", "--depth", "0"),
    ("doctor", "--threads", "x"),
    ("forget", "--nonesuch"),
    ("nonesuch",),
]


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_no_message_shows_python(
    foredraft: Command,
    own_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = foredraft(*arguments)
    assert ran.code == 2, ran.err
    assert "Error: " in ran.err
    assert not PYTHON.findall(ran.err), ran.err


SETTINGS = [
    "port = 'http'",
    "port = true",
    "host = 7",
    "keys = 3",
    "cors_origins = 'x'",
    "[models.a]\npath = 3",
    "[models.a]\npath = ''",
    "[models.a]\npath = 'x'\ncontext_length = 'long'",
    "[models.a]\npath = 'x'\nmemory = 3",
    "[models.a]\npath = 'x'\npinned = 1",
    "[models.a]\npath = 'x'\naliases = 'b'",
    "[models.a]\npath = 'x'\nspeculate = 3",
    "[models.a]\npath = 'x'\n[models.a.sampling]\ntemperature = 'hot'",
    "[models.a]\npath = 'x'\n[models.a.sampling]\ntop_p = 2",
    "[limits]\nmax_n = 0",
    "nonesuch = 1",
    "[models]\na = 1",
    "port = ",
    "idle_timeout_s = nan",
]


@pytest.mark.parametrize("text", SETTINGS)
def test_no_message_about_settings_shows_python(
    foredraft: Command, own_cache: Path, tmp_path: Path, text: str
) -> None:
    settings = tmp_path / "foredraft.toml"
    settings.write_text(text)
    ran = foredraft("serve", "--config", settings)
    assert ran.code == 2, ran.err
    assert not PYTHON.findall(ran.err), ran.err
