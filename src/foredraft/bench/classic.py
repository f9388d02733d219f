"""The two classic prompts of speculative decoding, and sweeps: tokens per second over the draft length.

Papers and tools show the gain of a draft length on a function to be completed (the first problem of
HumanEval, Chen et al. 2021, arXiv 2107.03374) and on a word problem about coins and fruit. Both are told
here in our own words. The first has names and types that come back; the second has numbers that do not.
"""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.bench.report import SweepPoint
from foredraft.bench.workloads import PromptCase
from foredraft.config import AUTO, OFF, parse_speculation
from foredraft.errors import SpeculationStringError

LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
"""Draft lengths of a sweep; 0 is plain decoding. All of the short ones, because V(n) has its steps there."""

PLACE = "{}"
"""Stands for the draft length in a speculation string that is swept."""

DEFAULT_SWEEPS = (f"ngram-simple:n=3,m={PLACE}", AUTO)

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


def sweep_points(template: str, lengths: Sequence[int] = LENGTHS) -> list[SweepPoint]:
    """The settings of a speculation string with `PLACE` in it, one for each draft length; `OFF` for 0.

    Raises SpeculationStringError for a string that is not one, or has no place for the length.
    """
    if PLACE not in template:
        raise SpeculationStringError(
            f"{template!r} has no place for the draft length.",
            hint=f"Write {PLACE} where it belongs, as in 'suffix:max={PLACE}' or 'ngram-simple:m={PLACE}'.",
        )
    return [
        SweepPoint(length, str(parse_speculation(template.replace(PLACE, str(length)))) if length else OFF)
        for length in lengths
    ]
