from __future__ import annotations

import io

from rich.console import Console

from foredraft.cli.chat_stats import Totals
from foredraft.types import Completion, DrafterStats, FinishReason, SpeculationStats, Timings, Usage


def completion(
    *,
    tokens: int = 10,
    ms: float = 100.0,
    rounds: int = 5,
    length: float | None = 2.0,
    speedup: float | None = None,
    drafters: dict[str, DrafterStats] | None = None,
    finish: FinishReason = FinishReason.STOP,
    notes: tuple[str, ...] = (),
) -> Completion:
    spec = SpeculationStats(
        configured="auto",
        active=False,
        reason="[nothing] to draft",
        rounds=rounds,
        acceptance_rate=None,
        acceptance_length=length,
        estimated_speedup=speedup,
        drafters=drafters or {},
        accepted_by_depth=(),
        exact=False,
        exact_reason="weights are F16",
        notes=notes,
    )
    usage = Usage(20, tokens, 15, 0, 0)
    timings = Timings(5, 1.0, tokens, ms, 0, 0)
    return Completion("", (), (), (), finish, usage, timings, spec)


def shown(totals: Totals) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(totals.table(1000))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_turns_and_tokens_add_up() -> None:
    totals = Totals()
    totals.add(completion(tokens=10, ms=100.0))
    totals.add(completion(tokens=30, ms=100.0, finish=FinishReason.ABORT))
    assert (totals.turns, totals.stopped, totals.tokens, totals.per_second) == (2, 1, 40, 200.0)
    assert "2 (1 stopped)" in shown(totals)


def test_acceptance_length_weighs_rounds() -> None:
    totals = Totals()
    totals.add(completion(rounds=1, length=4.0))
    totals.add(completion(rounds=3, length=2.0))
    totals.add(completion(rounds=0, length=None))
    assert totals.acceptance_length == 2.5


def test_speedup_compares_times_and_skips_turns_without_a_comparison() -> None:
    totals = Totals()
    totals.add(completion(ms=100.0, speedup=3.0))
    totals.add(completion(ms=300.0, speedup=1.0))
    totals.add(completion(ms=1000.0, speedup=None))
    assert totals.estimated_speedup == 600 / 400


def test_noise_is_not_shown_as_a_speedup() -> None:
    totals = Totals()
    totals.add(completion(ms=100.0, speedup=1.0))
    assert "1.00 × plain decoding, the difference is within noise" in shown(totals)
    totals.add(completion(ms=100.0, speedup=2.0))
    assert "1.50 × plain decoding" in shown(totals)
    assert "noise" not in shown(totals)


def test_drafters_add_up_by_name() -> None:
    totals = Totals()
    totals.add(completion(drafters={"a": DrafterStats(1, 8, 4, 0.5)}))
    totals.add(completion(drafters={"a": DrafterStats(1, 2, 1, 0.5), "b": DrafterStats()}))
    assert totals.drafters["a"] == DrafterStats(2, 10, 5, 1.0)
    assert "drafted 10, accepted 5 (50 %)" in shown(totals)
    assert "drafted 0, accepted 0" in shown(totals)


def test_what_is_not_known_is_not_made_up() -> None:
    totals = Totals()
    totals.add(completion(tokens=0, ms=0.0, rounds=0, length=None))
    assert (totals.per_second, totals.acceptance_length, totals.estimated_speedup) == (0.0, None, None)
    assert "–" in shown(totals)


def test_reasons_and_notes_are_shown_as_they_are() -> None:
    totals = Totals()
    totals.add(completion(notes=("drafter x [/] failed",)))
    text = shown(totals)
    assert "auto (no drafts in the last answer: [nothing] to draft)" in text
    assert "no: weights are F16" in text
    assert "drafter x [/] failed" in text
    assert "20 tokens, 15 of them cached" in text
    assert "30 of 1,000 tokens" in text
