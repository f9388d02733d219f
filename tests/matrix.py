"""Products of parameters: every pair of values in `make test`, every combination in `make nightly`.

A fault that only a combination of values shows is nearly always shown by two of them (Kuhn, Wallace and
Gallo, "Software Fault Interactions", 2004), so the quick run has every pair of values at least once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

nightly = pytest.mark.nightly
"""A test that only `pytest --nightly` runs."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a test: its name, its values and their ids, and whether a fixture takes it."""

    name: str
    values: Sequence[Any]
    ids: Sequence[str] | None
    indirect: bool


def matrix(
    *, strength: int = 2, indirect: Collection[str] = (), ids: Any = None, **values: Collection[Any]
) -> pytest.MarkDecorator:
    """Parametrise a test by a product of values, of which the quick run takes enough to show every pair.

    A mapping is taken by its keys. `strength` is 2 for pairs, 1 where every value once is enough. `ids` names
    the values of a parameter, `{name: names or function}`; `indirect` lists the parameters that are fixtures.
    """
    parameters = [
        Parameter(name, chosen := list(each), _ids(chosen, (ids or {}).get(name)), name in indirect)
        for name, each in values.items()
    ]
    return pytest.mark.matrix(parameters, strength)


def _ids(values: Sequence[Any], ids: Any) -> Sequence[str] | None:
    return [str(ids(value)) for value in values] if callable(ids) else ids


def parametrize(metafunc: pytest.Metafunc, *, full: bool) -> None:
    """Carry out a test's `matrix`, in conftest's `pytest_generate_tests`."""
    marker = metafunc.definition.get_closest_marker("matrix")
    if marker is None:
        return
    parameters: list[Parameter]
    parameters, strength = marker.args
    sizes = [len(parameter.values) for parameter in parameters]
    rows = list(itertools.product(*map(range, sizes))) if full else cover(sizes, strength)
    metafunc.parametrize(
        [parameter.name for parameter in parameters],
        [
            pytest.param(
                *(parameter.values[index] for parameter, index in zip(parameters, row, strict=True)),
                id=_row_id(parameters, row),
            )
            for row in rows
        ],
        indirect=[parameter.name for parameter in parameters if parameter.indirect],
    )


def _row_id(parameters: Sequence[Parameter], row: Sequence[int]) -> str:
    names = []
    for parameter, index in zip(parameters, row, strict=True):
        value = parameter.values[index]
        plain = isinstance(value, str | int | float | bool | None)
        name = str(value) if plain else getattr(value, "__name__", f"{parameter.name}{index}")
        names.append(parameter.ids[index] if parameter.ids else name)
    return "-".join(names)


def cover(sizes: Sequence[int], strength: int = 2) -> list[tuple[int, ...]]:
    """Rows of a product of `sizes` in which every `strength` columns show every combination of their values.

    Greedy: each row is the one of the product with most combinations that no row before has, and of equals
    the one whose values were used least.
    """
    columns = list(itertools.combinations(range(len(sizes)), min(strength, len(sizes))))

    def shown(row: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return {tuple((column, row[column]) for column in chosen) for chosen in columns}

    candidates = {row: shown(row) for row in itertools.product(*map(range, sizes))}
    missing = set().union(*candidates.values())
    used: Counter[tuple[int, int]] = Counter()
    rows: list[tuple[int, ...]] = []
    while missing:
        best = max(
            candidates,
            key=lambda row: (len(candidates[row] & missing), -sum(used[value] for value in enumerate(row))),
        )
        missing -= candidates.pop(best)
        used.update(enumerate(best))
        rows.append(best)
    return sorted(rows)
