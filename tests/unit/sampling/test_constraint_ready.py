"""A vocabulary that was built beforehand is not built again."""

from __future__ import annotations

import pytest

from foredraft.sampling import constraint
from foredraft.sampling.constraint import compile_constraint, get_ready
from foredraft.testing import FakeTokenizer
from foredraft.types import Constraint


def test_ready_once_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = FakeTokenizer()
    get_ready(tokenizer)
    monkeypatch.setattr(constraint, "_build", lambda _: pytest.fail("built again"))
    get_ready(tokenizer)
    assert compile_constraint(Constraint("regex", "ab"), tokenizer).forced()
