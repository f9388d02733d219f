"""Tokens per second over the draft length, on the two classic prompts of speculative decoding.

    python -m lab.sweep MODEL --speculate "suffix:max={}"

Papers and tools show the gain of a draft length on a function to be completed (the first problem of
HumanEval, Chen et al. 2021, arXiv 2107.03374) and on a word problem about coins and fruit. Both are told
here in our own words. The first has names and types that come back; the second has numbers that do not. The
best length is another one for each prompt, model and machine, and a wrong one is slower than none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from foredraft.bench.results import Sample, scores
from foredraft.bench.sides import EngineSide, Messages, Side, sample_of
from foredraft.bench.workloads import PromptCase
from foredraft.config import AUTO, OFF, parse_speculation
from foredraft.engine.engine import Engine
from foredraft.errors import SpeculationStringError
from foredraft.types import SamplingParams
from lab.live import arguments, engines, measured, run

LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
"""Draft lengths of a sweep; 0 is plain decoding. All of the short ones, because V(n) has its steps there."""

PLACE = "{}"
"""Stands for the draft length in a speculation string that is swept."""

CLOSE_ELEMENTS = '''\
Complete this Python function. Return the whole function, then explain in one sentence how it works.

```python
from typing import List


def has_close_elements(numbers: List[float], threshold: float) -> bool:
    """Tell whether any two of the numbers are nearer to each other than the threshold.

    >>> has_close_elements([4.0, 7.5, 9.0], 1.0)
    False
    >>> has_close_elements([6.2, 1.1, 3.0, 6.0], 0.25)
    True
    """
```
'''

COINS_AND_APPLES = """\
Mira comes to the market with 20 gold coins. A basket of 6 apples costs 2 gold coins. She buys 4 baskets,
gives half of the apples to her brother, and eats 3 of hers on the way home. There she sells each apple that
she has left for 1 gold coin. How many gold coins does Mira have in the end, and how many apples does her
brother have? Work it out step by step.
"""


def classic_prompts() -> list[PromptCase]:
    """The two prompts."""
    return [
        PromptCase("close elements", "code", (CLOSE_ELEMENTS,)),
        PromptCase("coins and apples", "math", (" ".join(COINS_AND_APPLES.split()),)),
    ]


def sweep_settings(template: str, lengths: Sequence[int] = LENGTHS) -> dict[int, str]:
    """The settings of a speculation string with `PLACE` in it by draft length; `OFF` for 0.

    Raises SpeculationStringError for a string that is not one, or has no place for the length.
    """
    if PLACE not in template:
        raise SpeculationStringError(
            f"{template!r} has no place for the draft length.",
            hint=f"Write {PLACE} where it belongs, as in 'suffix:max={PLACE}' or 'ngram-simple:m={PLACE}'.",
        )
    return {
        length: str(parse_speculation(template.replace(PLACE, str(length)))) if length else OFF
        for length in lengths
    }


class SwitchingSide:
    """One of many settings on a shared engine, set anew for each answer; `close` leaves the engine open.

    For settings that learn nothing from one request to the next, of which a sweep has dozens.
    """

    def __init__(self, speculation: str, engine: Engine) -> None:
        self.name = speculation
        self._engine = engine

    def restart(self) -> None:
        """Every answer is a new start."""

    def answer(self, messages: Messages, params: SamplingParams) -> Sample:
        self._engine.set_speculation(self.name)
        return sample_of(self._engine.generate(messages, params))

    def close(self) -> None:
        """Nothing here is this side's own."""


def main() -> None:
    """Measure, and print the table and the JSON line."""
    parser = arguments(__doc__)
    parser.add_argument("--speculate", metavar="SPEC", default=f"ngram-simple:n=3,m={PLACE}")
    args = parser.parse_args()
    settings = sweep_settings(args.speculate)
    prompts = classic_prompts()
    with engines(args, [OFF, AUTO]) as loaded:
        sides: list[Side] = [SwitchingSide(setting, loaded[OFF]) for setting in settings.values()]
        rows = list(measured(args, [*sides, EngineSide(AUTO, loaded[AUTO])], prompts))
    rates = {(it.prompt, it.setting): it.tokens_per_second for it in scores(rows, OFF)}
    labels = {str(length): setting for length, setting in settings.items()} | {AUTO: AUTO}
    print(f"{'draft length':<14}" + "".join(f"{case.id:>20}" for case in prompts))
    for label, setting in labels.items():
        cells = (rates[case.id, setting] for case in prompts)
        print(f"{label:<14}" + "".join(f"{rate or 0.0:>20.1f}" for rate in cells))
    print(json.dumps({case.id: _by_label(labels, rates, case.id) for case in prompts}))


def _by_label(
    labels: Mapping[str, str], rates: Mapping[tuple[str, str], float | None], prompt: str
) -> dict[str, float | None]:
    return {label: rates[prompt, setting] for label, setting in labels.items()}


if __name__ == "__main__":
    run(main)
