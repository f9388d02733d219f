"""One answer round by round: what was proposed, what `auto` expected, what it verified and what came of it.

The default model answers a prompt plainly. Then the answer is replayed in virtual time, as the first of a new
engine, so the decisions depend on no machine. The table in docs/planner.md is this script's output:
`python scripts/explain.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from foredraft import Engine
from foredraft.bench.curves import find_curve
from foredraft.bench.record import as_trace, trace_set
from foredraft.bench.replay import Replay
from foredraft.planner.records import Candidate, RequestRecord, RoundRecord
from foredraft.types import Reason, SamplingParams

PIPED = Path(__file__).parents[1] / "examples" / "shapes.txt"
QUESTION = "Write the same program again."
SHORT = {Reason.MEASURING: "measuring", Reason.BACK_OFF: "no attempt", Reason.NOTHING_FOUND: "nothing found"}
PROBABILITIES = 4
"""Tokens of a candidate whose survival is shown."""


def main() -> None:
    """Print the table of one answer."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--model", default=None)
    arguments.add_argument("--prompt", default=f"{PIPED.read_text(encoding='utf-8')}\n{QUESTION}")
    arguments.add_argument("--tokens", type=int, default=110)
    arguments.add_argument(
        "--curve", default="steep", help="what forwards cost: one that ships, or a JSON file"
    )
    args = arguments.parse_args()
    prompt = [{"role": "user", "content": args.prompt}]
    with Engine.load(args.model, speculate="off", remember=False) as engine:
        completion = engine.generate(prompt, SamplingParams(max_tokens=args.tokens))
        pieces = [engine.model.tokenizer.token_bytes(token) for token in completion.tokens]
        trace = as_trace(engine.encode(prompt), completion, name="explained")
        traces = trace_set(engine, [trace])
    records: list[RoundRecord] = []
    with Replay(traces, find_curve(args.curve)) as replay:
        replay.engine.decisions.watch(records.append)
        row = replay.answer(trace)
    print_table(records, pieces)
    print(f"{row.tokens} tokens in {row.rounds} rounds, {row.speedup:.2f} times as fast as plain decoding")


def print_table(records: Sequence[RoundRecord], pieces: Sequence[bytes]) -> None:
    """A line for each round; rounds without an attempt, one after the other, share one."""
    print("| round | proposed | verified | accepted | text |\n|---|---|---|---|---|")
    first = 1  # of the answer's tokens the first is the prompt's, before any round
    quiet: list[tuple[RoundRecord, str]] = []
    for record in records:
        [choice] = record.choices
        text = b"".join(pieces[first : first + choice.committed]).decode(errors="replace")
        first += choice.committed
        if choice.reason is Reason.BACK_OFF:
            quiet.append((record, text))
            continue
        print_quiet(quiet)
        quiet.clear()
        print(line(str(record.number), choice, text))
    print_quiet(quiet)


def print_quiet(rounds: Sequence[tuple[RoundRecord, str]]) -> None:
    """Rounds without an attempt, in one line."""
    if rounds:
        numbers = dict.fromkeys([rounds[0][0].number, rounds[-1][0].number])
        name = " to ".join(map(str, numbers))
        print(line(name, rounds[0][0].choices[0], "".join(text for _, text in rounds)))


def line(number: str, choice: RequestRecord, text: str) -> str:
    """A round's line of the table."""
    verified = f"{choice.source} {choice.length}" if choice.source else "plain"
    accepted = choice.accepted if choice.source else ""
    shown = text.replace("\n", "⏎").replace("|", "\\|")
    return (
        f"| {number} | {proposed(choice.candidates, choice.reason)} | {verified} | {accepted} | `{shown}` |"
    )


def proposed(candidates: Sequence[Candidate], reason: Reason | None) -> str:
    """The drafts there were, or why there were none."""
    if not candidates:
        return SHORT.get(reason, str(reason)) if reason else ""
    return "; ".join(
        f"{draft.source}: {draft.length} after {int(draft.features.get('match_length', 0))}: "
        f"{' '.join(f'{probability:.2f}' for probability in draft.survival[:PROBABILITIES])}"
        for draft in candidates
    )


if __name__ == "__main__":
    main()
