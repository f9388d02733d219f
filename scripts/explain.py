"""One answer round by round: what was proposed, what `auto` expected, what it verified and what came of it.

The table in docs/planner.md is this script's output: `python scripts/explain.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from foredraft import Engine
from foredraft.planner.records import Candidate, RequestRecord, RoundRecord
from foredraft.types import Reason, SamplingParams

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
SHORT = {Reason.NOTHING_FOUND: "nothing found", Reason.BACK_OFF: "back-off", Reason.MEASURING: "measuring"}


def main() -> None:
    """Print the table of one answer."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--model", default=None)
    arguments.add_argument("--prompt", default=PROMPT)
    arguments.add_argument("--tokens", type=int, default=80)
    arguments.add_argument("--threads", type=int, default=0)
    args = arguments.parse_args()
    decisions: list[RoundRecord] = []
    with Engine.load(args.model, remember=False, threads=args.threads) as engine:
        engine.decisions.watch(decisions.append)
        done = engine.generate(
            [{"role": "user", "content": args.prompt}], SamplingParams(max_tokens=args.tokens)
        )
        pieces = [engine.model.tokenizer.token_bytes(token) for token in done.tokens]
    print("| round | proposed | verified | accepted | ms | text |\n|---|---|---|---|---|---|")
    first = 1  # of the answer's tokens the first is the prompt's, before any round
    for decision in decisions:
        [choice] = decision.choices
        text = b"".join(pieces[first : first + choice.committed]).decode(errors="replace")
        print(row(decision, choice, text))
        first += choice.committed
    print(done.timings, done.speculation.estimated_speedup)


def row(decision: RoundRecord, choice: RequestRecord, text: str) -> str:
    """A round's line of the table."""
    tree = f", a tree of width {choice.width}" if choice.width > 1 else ""
    verified = f"{choice.source} {choice.length}{tree}" if choice.source else "plain"
    accepted = choice.accepted if choice.source else ""
    return (
        f"| {decision.number} | {proposed(choice.candidates, choice.reason)} | {verified} | {accepted} | "
        f"{decision.forward_ms:.1f} | `{text!r}` |"
    )


def proposed(candidates: Sequence[Candidate], reason: Reason | None) -> str:
    """The drafts there were, or why there were none."""
    if not candidates:
        return SHORT.get(reason, str(reason)) if reason else ""
    return "; ".join(
        f"{draft.source}: {draft.length} after {int(draft.features.get('match_length', 0))}: "
        f"{' '.join(f'{chance:.2f}' for chance in draft.survival[:4])}"
        for draft in candidates
    )


if __name__ == "__main__":
    main()
