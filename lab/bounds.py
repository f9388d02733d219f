"""How fast a trace could have been: bounds for every policy on the same cost curve.

- *hindsight*: before each forward the best draft in the request's history, its length chosen knowing the
  future: of all that ever followed the last token, what goes on being right for longest.
- *clairvoyant*: drafts that are always right, of the best length.

Trees do not change them: with the future known no second branch is needed. Nor do attempts to draft, which
they do without. Both are shortest paths over the output: from token t a forward of 1 + k rows leads to token
t + k + 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from foredraft.bench.curves import Curve
from foredraft.bench.trace import Trace
from foredraft.types import MAX_DRAFT_TOKENS


def hindsight_cost(trace: Trace, curve: Curve) -> float:
    """Time of the best decoding with drafts copied from the history, in units of V(1)."""
    return _shortest(copyable(trace.prompt, trace.output), curve)


def clairvoyant_cost(trace: Trace, curve: Curve) -> float:
    """Time with drafts that are always right, in units of V(1)."""
    return _shortest([MAX_DRAFT_TOKENS] * max(0, len(trace.output) - 1), curve)


def copyable(prompt: Sequence[int], output: Sequence[int]) -> list[int]:
    """For each output token but the first: how many tokens from there on also followed an earlier occurrence
    of the token before it. A text that repeats itself may be copied on into what it has just brought.
    """
    text: npt.NDArray[np.int64] = np.array([*prompt, *output], np.int64)
    # run[j]: how many tokens from j on equal those from `at` on; filled from the back.
    run = np.zeros(len(text) + 1, np.int64)
    found: list[int] = []
    for at in range(len(text) - 1, len(prompt), -1):
        same = text[:at] == text[at]
        run[:at] = np.where(same, run[1 : at + 1] + 1, 0)
        run[at:] = 0
        follows = text[: at - 1] == text[at - 1]
        found.append(int(min(run[1:at][follows].max(initial=0), MAX_DRAFT_TOKENS)))
    return found[::-1]


def _shortest(reach: Sequence[int], curve: Curve) -> float:
    """`reach[i]`: the longest draft that is right at the i-th token after the first."""
    count = len(reach)
    ratio = [curve.ratio(1 + k) for k in range(MAX_DRAFT_TOKENS + 1)]
    best = [0.0] * (count + 1)
    for i in range(count - 1, -1, -1):
        # The bonus token of a draft that ends the output is not needed: a shorter one does as well.
        longest = min(reach[i], count - i - 1)
        best[i] = min(ratio[k] + best[i + k + 1] for k in range(longest + 1))
    return best[0]
