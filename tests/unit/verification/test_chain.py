"""The match rule on chains."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from foredraft.verification.chain import verify_chain


def scripted(own: list[int], rows: list[int]) -> Callable[[int], int]:
    def choose(row: int) -> int:
        rows.append(row)
        return own[row]

    return choose


@pytest.mark.parametrize(
    ("draft", "own", "committed", "accepted"),
    [
        ([], [4], (4,), 0),
        ([1, 2, 3], [1, 2, 3, 4], (1, 2, 3, 4), 3),
        ([1, 2, 3], [9, 2, 3, 4], (9,), 0),
        ([1, 2, 3], [1, 9, 3, 4], (1, 9), 1),
        ([1, 2, 3], [1, 2, 9, 4], (1, 2, 9), 2),
        ([1, 1], [1, 1, 1], (1, 1, 1), 2),
    ],
)
def test_accepts_up_to_the_first_mismatch(
    draft: list[int], own: list[int], committed: tuple[int, ...], accepted: int
) -> None:
    rows: list[int] = []
    verdict = verify_chain(draft, scripted(own, rows))
    assert verdict.tokens == committed
    assert verdict.path == tuple(range(accepted))
    # Every call commits a token, so that choose may advance its state.
    assert rows == list(range(len(committed)))
    assert [verdict.row_of(i) for i in range(len(committed))] == rows
