"""Types of the command line's values, with clearer errors than click's "integer range" and "float"."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class _Bounds:
    low: float | None = None
    high: float | None = None

    def hold(self, number: float) -> bool:
        return (self.low is None or number >= self.low) and (self.high is None or number <= self.high)

    def __str__(self) -> str:
        """The bounds in words, to follow "a number"."""
        if self.low is None and self.high is None:
            return ""
        if self.high is None:
            return f", at least {self.low:g}"
        return f", at most {self.high:g}" if self.low is None else f" from {self.low:g} to {self.high:g}"


class Whole(click.ParamType[int]):
    """A whole number between inclusive bounds."""

    name = "whole number"

    def __init__(self, low: int | None = None, high: int | None = None) -> None:
        self._bounds = _Bounds(low, high)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002
        return "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = None
        if number is None or not self._bounds.hold(number):
            self.fail(f"{value} is not a whole number{self._bounds}.", param, ctx)
        return number


class Limit(Whole):
    """A whole number of at least 0; -1 is no limit, None."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = int(value)
        except ValueError:
            number = -2
        if number < -1:
            self.fail(f"{value} is not a whole number, at least 0, or -1 for no limit.", param, ctx)
        return None if number == -1 else number


class Number(click.ParamType[float]):
    """A finite number between inclusive bounds; a plain comparison would accept nan."""

    name = "number"

    def __init__(self, low: float | None = None, high: float | None = None) -> None:
        self._bounds = _Bounds(low, high)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002
        return "X"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or not self._bounds.hold(number):
            self.fail(f"{value} is not a finite number{self._bounds}.", param, ctx)
        return number


class Utf8(click.types.StringParamType):
    """Text for the model. Python passes invalid UTF-8 of the command line on as lone surrogates, which would
    be noise to the model.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(super().convert(value, param, ctx))
        if not is_utf8(text):
            self.fail("this is not UTF-8 text.", param, ctx)
        return text


class SomeText(Utf8):
    """Text of at least one character."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        if not text:
            self.fail("it is empty: give at least one character, or leave it out.", param, ctx)
        return text


def is_utf8(text: str) -> bool:
    """Whether the text has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
