from __future__ import annotations

import pytest

from foredraft.cli.units import counted, size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (2_500_000, "2.5 MB"),
        (98_400_000, "98.4 MB"),
        (25_276_514_304, "25.3 GB"),
        (7_000_000_000_000_000, "7000.0 TB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


def test_counts() -> None:
    assert counted(0, "file") == "0 files"
    assert counted(1, "file") == "1 file"
    assert counted(1234, "pair") == "1,234 pairs"
