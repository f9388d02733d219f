"""What the contract suites share."""

from __future__ import annotations

import pytest

from model_cases import Workspace


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("models"))
