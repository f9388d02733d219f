"""What asking may take of the time though it brings nothing: less, in company, where it has brought nothing.

Alone a request's share is `INCOME`. Among others drafts bring less, because rows that are added to many cost
more than rows added to one, and on some machines they bring nothing at all from some number of requests on.
What asking took there is compared with what the drafts saved, for each doubling of the number of requests:
where that was less, the income falls with it, to a quarter, from which it is found out when that changes.
"""

from __future__ import annotations

from dataclasses import dataclass

INCOME = 0.012
"""Credit of each round: the share of the time that asking may take though it brings nothing. Drafters that
cost no more are asked in every round."""

LEAST = 0.25
"""Of the income, where asking has brought nothing."""

PRIOR = 2.0
"""Turns that asking is taken to have cost, and to have saved, where nothing is known."""

WINDOW = 16.0
"""Turns of asking that are remembered: what came before them counts ever less."""


@dataclass(slots=True)
class _Account:
    """Turns that asking took, and that the drafts saved."""

    spent: float = PRIOR
    saved: float = PRIOR


class Income:
    """Credit of a round, for each number of requests that decode together, in turns: a request's share of a
    plain round.
    """

    def __init__(self) -> None:
        self._accounts: dict[int, _Account] = {}

    def of(self, together: int) -> float:
        """What a request earns with a round, where so many decode."""
        account = self._accounts.get(together.bit_length())
        if account is None:
            return INCOME
        return INCOME * max(LEAST, min(1.0, account.saved / account.spent))

    def spent(self, together: int, turns: float) -> None:
        """Asking took so many turns."""
        account = self._account(together)
        if account is not None:
            account.spent += turns
            if account.spent > WINDOW:
                account.saved *= WINDOW / account.spent
                account.spent = WINDOW

    def saved(self, together: int, turns: float) -> None:
        """A draft saved so many turns, or fewer than none."""
        account = self._account(together)
        if account is not None:
            account.saved = max(0.0, account.saved + turns)

    def _account(self, together: int) -> _Account | None:
        """None for a request alone, whose income is always the same."""
        if together < 2:
            return None
        return self._accounts.setdefault(together.bit_length(), _Account())
