"""What the tests of the library share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_server import Hub, isolated_hub


@pytest.fixture
def empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with nothing in it."""
    with isolated_hub(monkeypatch, tmp_path) as hub:
        yield hub
