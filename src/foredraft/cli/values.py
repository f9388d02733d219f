"""Types of the command line's values that click does not have."""

from __future__ import annotations

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A range of numbers without nan, which no comparison keeps out, and without infinities."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Utf8(click.types.StringParamType):
    """Text for the model. Python lets bytes of the command line through that are no UTF-8, as halves of
    characters, and the model would see noise.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(super().convert(value, param, ctx))
        if not is_utf8(text):
            self.fail("this is not UTF-8 text.", param, ctx)
        return text


def is_utf8(text: str) -> bool:
    """Whether it has no half characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
