"""What asking model-free drafters takes, in milliseconds: the default of a replay, and how a file says it.

Asking takes tens of microseconds in a loop and a multiple of that between two forwards, when the processor's
caches hold the model. A replay that charged nothing would favour whoever asks in every round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from types import MappingProxyType

from foredraft.errors import ConfigError

OTHER, CHOOSING, RESTING = "other", "choosing", "resting"

_MEASURED_AT = 4.0
"""Milliseconds of a plain round of the smaller of two models where the figures below were measured, llama.cpp
with two threads of Zen 4, 135M parameters. Beside the larger one, of 8.5 ms, they are the same. If forwards
are faster the processor is taken to be so, too, and asking takes the same share of a plain round."""

# Means over rounds between forwards, each n-gram drafter alone (docs/experiments.md).
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
class AskingCost:
    """Milliseconds for one request and round: of each of the `drafters` that is asked, by name, of any
    `other`, and of `choosing` among what they found, which `auto` does. `resting`: of every round of `auto`,
    however many requests and also if nobody is asked in it, beyond one without speculation.
    """

    drafters: Mapping[str, float] = field(default_factory=dict)
    other: float = 0.0
    choosing: float = 0.0
    resting: float = 0.0

    def of(self, drafter: str) -> float:
        """What asking this drafter takes."""
        return self.drafters.get(drafter, self.other)

    def describe(self, drafters: Iterable[str], *, choosing: bool) -> str:
        """In words, what these drafters take and, where somebody chooses, that."""
        named = {name: self.of(name) for name in drafters}
        if choosing:
            named |= {CHOOSING: self.choosing, RESTING: self.resting}
        parts = [f"{name} {ms:.2g}" for name, ms in named.items() if ms]
        return f"{', '.join(parts)} ms a round" if parts else "nothing"


FREE = AskingCost()


@cache
def usual_cost(v1_ms: float) -> AskingCost:
    """What asking takes where nothing else is known, beside a forward of one row that takes `v1_ms`."""
    share = min(1.0, v1_ms / _MEASURED_AT)
    return AskingCost(
        {name: share * ms for name, ms in _MEASURED_MS.items()}, share * _OTHER_MS, share * _CHOOSING_MS
    )


def parse_asking(value: object, where: str) -> AskingCost:
    """`asking_ms` of a cost curve's file. What it does not name takes no time. Raises ConfigError."""
    if not isinstance(value, dict) or not all(
        isinstance(ms, int | float) and not isinstance(ms, bool) for ms in value.values()
    ):
        raise ConfigError(
            f"{where}: 'asking_ms' must map drafters to milliseconds.",
            hint=f'For example {{"suffix": 0.3, "{OTHER}": 0.1, "{CHOOSING}": 0.4, "{RESTING}": 0.03}}.',
        )
    if not all(isfinite(ms) and ms >= 0 for ms in value.values()):
        raise ConfigError(f"{where}: milliseconds in 'asking_ms' are finite and not negative.")
    general = (OTHER, CHOOSING, RESTING)
    named = {name: float(ms) for name, ms in value.items() if name not in general}
    return AskingCost(named, *(float(value.get(name, 0.0)) for name in general))
