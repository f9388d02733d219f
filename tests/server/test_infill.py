"""`suffix` in text completions: filling a gap, by models that were trained to."""

from __future__ import annotations

import openai
import pytest

from foredraft.engine.prompt import encode_infill
from foredraft.errors import RequestError
from foredraft.testing import FakeTokenizer
from http_server import client_of, serving


class Filling(FakeTokenizer):
    """Bytes, and three control tokens around a gap."""

    infill_tokens = (258, 259, 260)


def test_what_comes_after_the_gap_comes_before_the_answer() -> None:
    tokens = encode_infill(Filling(261), "def f(", "): pass")
    assert tokens == [258, *b"def f(", 259, *b"): pass", 260]


def test_a_model_that_cannot_says_so() -> None:
    with pytest.raises(RequestError, match="not trained to fill gaps"):
        encode_infill(FakeTokenizer(), "a", "b")
    with serving() as server, pytest.raises(openai.BadRequestError, match="not trained to fill gaps"):
        client_of(server).completions.create(model="fake", prompt="a", suffix="b", max_tokens=1)


def test_the_client_fills_a_gap() -> None:
    with serving() as server:
        client = client_of(server)
        client.completions.create(model="fake", prompt="load", max_tokens=1)
        tokenizer = server.engines["fake"].model.tokenizer
        tokenizer.infill_tokens = (1, 2, 3)  # type: ignore[misc]
        filled = client.completions.create(
            model="fake", prompt="ab", suffix="cd", max_tokens=4, temperature=0
        )
        same = client.completions.create(
            model="fake", prompt=[1, *b"ab", 2, *b"cd", 3], max_tokens=4, temperature=0
        )
        assert filled.choices[0].text == same.choices[0].text
        assert filled.usage is not None
        assert filled.usage.prompt_tokens == 7
        with pytest.raises(openai.BadRequestError, match="text"):
            client.completions.create(model="fake", prompt=[1, 2], suffix="b", max_tokens=1)
