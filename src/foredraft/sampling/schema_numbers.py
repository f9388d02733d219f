"""Which numbers of a JSON schema llguidance keeps as they are.

It reads all of them as 64-bit floats, and makes 64-bit integers of those for integers: 9007199254740993
becomes …992, what is beyond 64 bits becomes the last that fits, and at −2⁶³ it runs out of its stack. Bounds
it writes out digit by digit, each one level deeper in a regex. A `multipleOf` has to fit 32 bits without its
decimal point.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import combinations
from typing import Any, TypeGuard

from foredraft.errors import RequestError

EXACT = 2**53
"""Integers up to here are floats as well."""

MOST_DIGITS = 10**18
"""Up to here integers that are floats as well can be bounds."""

SMALLEST = 1e-15

_DEEP = 200


def check_values(value: object, key: str, level: int = 0) -> None:
    """Raises RequestError for a number in a `const` or `enum` that would come out as another."""
    if level > _DEEP:
        raise RequestError(
            f"The JSON schema cannot be used: {key} is nested too deep.", hint="Use a flatter one."
        )
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            check_values(part, key, level + 1)
    elif is_number(value) and not _is_constant_held(value):
        raise RequestError(
            f"The JSON schema cannot be used: {key} has {shown(value)}, which cannot be held exactly.",
            hint=f"Integers are exact up to 2^53, {EXACT}. Send larger ones as strings.",
        )


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether this is a number in JSON: true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_constant_held(value: int | float) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return abs(value) <= EXACT or (abs(value) < 2**63 - 1024 and int(float(value)) == value)


def is_bound_held(key: str, value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a `minimum` and the like comes out as it is. About what is no number llguidance complains."""
    if not is_number(value):
        return True
    if isinstance(value, float) and not math.isfinite(value):
        return False
    size = abs(value)
    if size < EXACT:
        return size == 0 or size >= SMALLEST
    if key.startswith("exclusive"):  # one is added or taken away
        return False
    whole = schema.get("type") == "integer" and size < MOST_DIGITS and int(float(value)) == value
    return size == EXACT or whole or _is_last(key, value, schema)


def _is_last(key: str, value: Any, schema: Mapping[str, Any]) -> bool:
    """2⁶³ − 1 as an integer's `maximum`: the last integer itself, beside a bound on the other side."""
    least = schema.get("minimum")
    bounded = isinstance(least, int) and -EXACT < least < EXACT
    return key == "maximum" and value == 2**63 - 1 and schema.get("type") == "integer" and bounded


def is_multiple_held(value: float) -> bool:
    """Whether a `multipleOf` comes out as it is: its decimals are shifted out as a float's."""
    shifted, places = float(min(value, 2**64)), 0
    while shifted % 1 and shifted < 2**32:
        shifted, places = shifted * 10, places + 1
    return shifted < 2**32 and Decimal(int(shifted)).scaleb(-places) == Decimal(str(value))


def check_multiples(values: Iterable[float]) -> None:
    """Raises RequestError where a common multiple of two `multipleOf` would not fit 32 bits."""
    exact = {Decimal(str(value)).normalize() for value in values}
    for one, other in combinations(sorted(exact), 2):
        shift = Decimal(10) ** max(_places(one), _places(other))
        if one * shift * other * shift >= 2**32:
            raise RequestError(
                f"The JSON schema cannot be used: multipleOf {one:f} and {other:f} at once cannot be held.",
                hint="Leave one of them out.",
            )


def _places(value: Decimal) -> int:
    return max(0, -int(value.as_tuple().exponent))


def shown(value: float) -> str:
    """A number for a message."""
    return str(value) if abs(value) < 10**40 else "a number of more than 40 digits"
