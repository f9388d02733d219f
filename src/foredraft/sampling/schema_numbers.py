"""Which numbers of a JSON schema llguidance represents exactly.

It reads all of them as 64-bit floats, and converts those for integers to 64-bit integers: 9007199254740993
becomes …992, a number beyond 64 bits becomes the largest possible one, and −2⁶³ overflows its stack. Bounds
become a regex with one nesting level per digit. A `multipleOf` without its decimal point must fit 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import combinations
from typing import Any, TypeGuard

from foredraft.errors import RequestError

EXACT = 2**53
"""Integers up to this are exact as floats."""

MOST_DIGITS = 10**18
"""Maximum integer that can be a bound, if it is exact as a float."""

SMALLEST = 1e-15

_DEEP = 200


def check_values(value: object, key: str, level: int = 0) -> None:
    """Raises RequestError for a number in a `const` or `enum` that llguidance would change."""
    if level > _DEEP:
        raise RequestError(
            f"The JSON schema cannot be used: {key} is nested too deeply.", hint="Use a flatter schema."
        )
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            check_values(part, key, level + 1)
    elif is_number(value) and not _is_constant_held(value):
        raise RequestError(
            f"The JSON schema cannot be used: {key} has {shown(value)}, which cannot be represented exactly.",
            hint=f"Integers are exact up to 2^53, {EXACT}. Send larger ones as strings.",
        )


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether the value is a number in JSON: true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_constant_held(value: int | float) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return abs(value) <= EXACT or (abs(value) < 2**63 - 1024 and int(float(value)) == value)


def is_bound_held(key: str, value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a `minimum` or similar is represented exactly. llguidance refuses other types."""
    if not is_number(value):
        return True
    if isinstance(value, float) and not math.isfinite(value):
        return False
    size = abs(value)
    if size < EXACT:
        return size == 0 or size >= SMALLEST
    if key.startswith("exclusive"):  # one is added or subtracted
        return False
    whole = schema.get("type") == "integer" and size < MOST_DIGITS and int(float(value)) == value
    return size == EXACT or whole or _is_last(key, value, schema)


def _is_last(key: str, value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether it is 2⁶³ − 1 as an integer's `maximum`, beside a lower bound: this one is exact."""
    least = schema.get("minimum")
    bounded = isinstance(least, int) and -EXACT < least < EXACT
    return key == "maximum" and value == 2**63 - 1 and schema.get("type") == "integer" and bounded


def is_multiple_held(value: float) -> bool:
    """Whether a `multipleOf` is represented exactly: its decimals are shifted out as a float's."""
    shifted, places = float(min(value, 2**64)), 0
    while shifted % 1 and shifted < 2**32:
        shifted, places = shifted * 10, places + 1
    return shifted < 2**32 and Decimal(int(shifted)).scaleb(-places) == Decimal(str(value))


def check_multiples(values: Iterable[float]) -> None:
    """Raises RequestError if a common multiple of two `multipleOf` would exceed 32 bits."""
    exact = {Decimal(str(value)).normalize() for value in values}
    for one, other in combinations(sorted(exact), 2):
        shift = Decimal(10) ** max(_places(one), _places(other))
        if one * shift * other * shift >= 2**32:
            raise RequestError(
                f"The JSON schema cannot be used: multipleOf {one:f} and {other:f} cannot be combined.",
                hint="Remove one of them.",
            )


def _places(value: Decimal) -> int:
    return max(0, -int(value.as_tuple().exponent))


def shown(value: float) -> str:
    """A number for a message."""
    return str(value) if abs(value) < 10**40 else "a number of more than 40 digits"
