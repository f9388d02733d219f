"""Errors of a replica's start, on their way through Ray's texts."""

from __future__ import annotations

import traceback

import pytest

from foredraft.errors import CapacityError, ConfigError, ForedraftError, ModelNotFoundError
from foredraft.scale.start_error import StartError, error_in


@pytest.mark.parametrize(
    "error",
    [
        ModelNotFoundError("There is no model 'x' [y].", hint='Pull it: "x}]".'),
        CapacityError("Not enough memory."),
        ConfigError("No.\nReally.", setting="threads"),
    ],
)
def test_an_error_comes_out_of_a_stack_trace(error: ForedraftError) -> None:
    try:
        raise StartError(error)
    except StartError:
        text = f"The deployment failed to start: {traceback.format_exc()}\nand more [of] it {{}}"
    found = error_in(text)
    assert type(found) is type(error)
    assert (found.message, found.hint, found.exit_code) == (error.message, error.hint, error.exit_code)


def test_other_texts_have_none() -> None:
    assert error_in("RuntimeError: [foredraft is not installed]") is None
