"""A drafter that takes time is asked where it pays, and tried now and then where it does not."""

from __future__ import annotations

from foretoken.planner.worth import PROBE_TOKENS, DrafterWorth

PLAIN_MS = 10.0


def flat(rows: int) -> float:
    return 1.0 + 0.05 * (rows - 1)


def ask(worth: DrafterWorth, *, may_probe: bool = False):  # type: ignore[no-untyped-def]
    return worth.limit(flat, PLAIN_MS, decoding=1, margin=1.03, may_probe=may_probe)


def feed(worth: DrafterWorth, *, ms: float, accepted: int, length: int, rounds: int = 50) -> None:
    for _ in range(rounds):
        worth.drafted(ms, length)
        worth.verified(accepted, length)


def test_a_cheap_drafter_always_drafts_however_bad_it_is() -> None:
    worth = DrafterWorth()
    feed(worth, ms=0.05, accepted=0, length=4)
    assert worth.is_free(PLAIN_MS)
    assert ask(worth).max_tokens > 8


def test_a_good_costly_drafter_drafts_and_a_useless_one_only_probes() -> None:
    good, useless = DrafterWorth(), DrafterWorth()
    feed(good, ms=4 * 1.0, accepted=4, length=4)
    feed(useless, ms=4 * 1.0, accepted=0, length=4)
    assert ask(good).max_tokens >= 4
    assert 0.0 < ask(good).min_survival < 1.0
    assert ask(useless) is None
    assert ask(useless, may_probe=True).max_tokens == PROBE_TOKENS
    assert useless.probing
    assert not good.probing


def test_a_drafter_that_becomes_good_is_found_out_by_its_probes() -> None:
    worth = DrafterWorth()
    feed(worth, ms=4.0, accepted=0, length=4)
    assert ask(worth) is None
    feed(worth, ms=4.0, accepted=4, length=4, rounds=40)
    assert ask(worth) is not None


def test_a_drafter_dearer_than_the_target_never_pays() -> None:
    worth = DrafterWorth()
    feed(worth, ms=4 * 12.0, accepted=4, length=4)
    assert ask(worth) is None
