"""What `make nightly` runs: fuzzers, real clients and long trials, for hours. `make test` runs none."""

from __future__ import annotations

import pytest

MINUTES = 60.0
"""How long each fuzzer runs, unless `--minutes` says otherwise."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest nightly --minutes 1`: a short night."""
    parser.addoption("--minutes", type=float, default=MINUTES, help="how long each fuzzer runs")


@pytest.fixture
def seconds(request: pytest.FixtureRequest) -> float:
    """How long one fuzzer may run."""
    minutes: float = request.config.getoption("--minutes")
    return minutes * 60
