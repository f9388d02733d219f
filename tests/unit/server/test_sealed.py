"""A thought in the form in which clients hand it back unread."""

from __future__ import annotations

import pytest

from foredraft.server.sealed import sealed, unsealed


@pytest.mark.parametrize("thought", ["", "Hm.", "é🙂", "half a pair: \ud83d."])
def test_a_thought_comes_back(thought: str) -> None:
    assert unsealed(sealed(thought)) == thought


@pytest.mark.parametrize("seal", [None, "", "other:SG0=", "foredraft:!", "foredraft:/w=="])
def test_what_nobody_here_sealed_is_empty(seal: str | None) -> None:
    assert unsealed(seal) == ""
