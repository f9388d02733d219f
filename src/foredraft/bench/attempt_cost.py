"""What attempts to draft cost, in milliseconds: the default of a replay, and how a file gives it.

A call of a drafter takes tens of microseconds in a loop and a multiple of that between two forwards, when the
processor's caches hold the model. A replay that charged nothing would favour a policy that calls in every
round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from types import MappingProxyType

from foredraft.errors import ConfigError

OTHER, CHOOSING, ROUND = "other", "choosing", "resting"
"""Keys in a file, beside the names of drafters."""

FURTHER = 0.22
"""What an attempt costs for each request beyond the first, of what it costs for one (measured: 1.3 ms for one
request, 1.6 for four)."""

_MEASURED_AT = 4.0
"""Milliseconds of a plain round of the smaller of two models where the figures below were measured, llama.cpp
with two threads of Zen 4, 135M parameters. Beside the larger one, of 8.5 ms, they are the same. Where
forwards are faster the processor is taken to be faster, too: an attempt costs the same share of a plain
round."""

# Means over rounds between forwards, each n-gram drafter alone.
_MEASURED_MS = MappingProxyType(
    {
        "suffix": 0.06,
        "recycle": 0.04,
        "prediction": 0.01,
        "grammar": 0.01,
        "ngram-simple": 0.03,
        "ngram-map-k": 0.03,
        "ngram-map-k4v": 0.03,
        "ngram-mod": 0.03,
        "ngram-cache": 0.09,
    }
)
_OTHER_MS = 0.07
_CHOOSING_MS = 0.23


@dataclass(frozen=True, slots=True)
class AttemptCost:
    """Milliseconds for one request and round: of each of the `drafters` that is called, by name, of any
    `other`, and of `choosing` among the candidates, which `auto` does. `round`: of every round of `auto`,
    whatever the number of requests and also if no drafter is called, beyond one without speculation.
    """

    drafters: Mapping[str, float] = field(default_factory=dict)
    other: float = 0.0
    choosing: float = 0.0
    round: float = 0.0

    def of(self, drafter: str) -> float:
        """The cost of a call of this drafter."""
        return self.drafters.get(drafter, self.other)

    def describe(self, drafters: Iterable[str], *, choosing: bool) -> str:
        """In words, what these drafters cost and, with `choosing`, what the planner does."""
        named = {name: self.of(name) for name in drafters}
        if choosing:
            named |= {"choosing": self.choosing, "every round": self.round}
        parts = [f"{name} {ms:.2g}" for name, ms in named.items() if ms]
        return f"{', '.join(parts)} ms a round" if parts else "nothing"


FREE = AttemptCost()


@cache
def usual_cost(v1_ms: float) -> AttemptCost:
    """The cost where nothing else is known, beside a forward of one row that takes `v1_ms`."""
    share = min(1.0, v1_ms / _MEASURED_AT)
    return AttemptCost(
        {name: share * ms for name, ms in _MEASURED_MS.items()}, share * _OTHER_MS, share * _CHOOSING_MS
    )


def parse_cost(value: object, where: str) -> AttemptCost:
    """`asking_ms` of a cost curve's file. What it does not name costs nothing. Raises ConfigError."""
    if not isinstance(value, dict) or not all(
        isinstance(ms, int | float) and not isinstance(ms, bool) for ms in value.values()
    ):
        raise ConfigError(
            f"{where}: 'asking_ms' must map drafters to milliseconds.",
            hint=f'For example {{"suffix": 0.3, "{OTHER}": 0.1, "{CHOOSING}": 0.4, "{ROUND}": 0.03}}.',
        )
    if not all(isfinite(ms) and ms >= 0 for ms in value.values()):
        raise ConfigError(f"{where}: milliseconds in 'asking_ms' are finite and not negative.")
    general = (OTHER, CHOOSING, ROUND)
    named = {name: float(ms) for name, ms in value.items() if name not in general}
    return AttemptCost(named, *(float(value.get(name, 0.0)) for name in general))
