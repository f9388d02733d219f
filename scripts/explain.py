"""One answer round by round: what was proposed, what `auto` expected, what it verified and what came of it.

The table in docs/planner.md is this script's output: `python scripts/explain.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from foretoken import Engine
from foretoken.planner.adaptive import AdaptivePlanner
from foretoken.planner.calibration import Survival
from foretoken.protocols import Planner, RequestView
from foretoken.types import Draft, DraftLimit, Load, Round, SamplingParams

PROMPT = (
    "Rename the variable total to amount, and change nothing else:\n\n"
    """def bill(prices, tax):
    total = 0
    for price in prices:
        total = total + price
    total = total + total * tax
    return total
"""
)


class Explained:
    """A planner that prints what another one does."""

    def __init__(self, planner: AdaptivePlanner, engine: Engine) -> None:
        self._planner: Planner = planner
        self._survival: Survival = planner._survival
        self._engine = engine
        self._number = 0
        self._seen: list[str] = []

    def limits(
        self, requests: Sequence[RequestView], drafters: Sequence[str], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        self._seen = []
        limits = self._planner.limits(requests, drafters, load)
        if not any(limit for given in limits.values() for limit in given):
            self._seen = ["nobody asked"]
        return limits

    def choose(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> list[Draft | None]:
        for draft in candidates[0]:
            chances = self._survival.estimate(draft, 1.0)
            some = " ".join(f"{chance:.2f}" for chance in chances[:4])
            match = int(draft.features.get("match_length", 0))
            self._seen.append(f"{draft.source}: {len(draft)} tokens after {match}, survival {some}")
        return self._planner.choose(requests, candidates, load)

    def observe(self, measured: Round) -> None:
        for _, outcome in measured.outcomes:
            self._number += 1
            text = b"".join(map(self._engine.model.tokenizer.token_bytes, outcome.tokens)).decode(
                errors="replace"
            )
            drafted = len(outcome.draft) if outcome.draft else 0
            who = outcome.draft.source if outcome.draft else ""
            print(
                f"| {self._number} | {'; '.join(self._seen) or 'nothing found'} | "
                f"{f'{who} {drafted}' if drafted else 'plain'} | {outcome.accepted if drafted else ''} | "
                f"{measured.forward_ms:.1f} | `{text!r}` |"
            )
        self._planner.observe(measured)

    def reason(self) -> str | None:
        return self._planner.reason()

    def start(self, request: RequestView) -> None:
        self._planner.start(request)

    def stop(self, request: RequestView) -> None:
        self._planner.stop(request)


def main() -> None:
    """Print the table of one answer."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--model", default=None)
    arguments.add_argument("--prompt", default=PROMPT)
    arguments.add_argument("--tokens", type=int, default=80)
    args = arguments.parse_args()
    with Engine.load(args.model, remember=False) as engine:
        assert isinstance(engine.planner, AdaptivePlanner)
        explained = Explained(engine.planner, engine)
        engine._runner.setup = replace(engine._runner.setup, planner=explained)
        print("| round | proposed | verified | accepted | ms | text |\n|---|---|---|---|---|---|")
        done = engine.generate(
            [{"role": "user", "content": args.prompt}], SamplingParams(max_tokens=args.tokens)
        )
        print(done.timings, done.speculation.estimated_speedup)


if __name__ == "__main__":
    main()
