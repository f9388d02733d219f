"""Settings of a request for the chat template: whether and how much to reason, and the template's own
variables.

A setting is checked against the loaded model's template: its variable is set; a setting that cannot be
honoured is refused if the model does reason. A template without reasoning has nothing to turn on or off.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator

from foredraft.errors import RequestError
from foredraft.templates.traits import BUDGET, EFFORT, SWITCHES, TemplateTraits

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

MOST_VARIABLES: Final = 32
MOST_CHARACTERS: Final = 1 << 16

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_TAKEN: Final = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}
    | {
        "range",
        "dict",
        "lipsum",
        "cycler",
        "joiner",
        "namespace",
        "caller",
        "loop",
        "self",
        "varargs",
        "kwargs",
    }
)

logger = logging.getLogger(__name__)


def _checked(given: object) -> object:
    if not isinstance(given, dict):
        return given
    if len(given) > MOST_VARIABLES:
        raise ValueError(f"{len(given)} variables are too many; at most {MOST_VARIABLES} are allowed")
    for name in given:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                "a variable's name must have 1 to 64 letters, digits and '_', starting with a letter"
            )
        if name in _TAKEN or name.endswith("_token"):
            raise ValueError(f"the variable {name!r} is set by the server")
    try:
        size = len(json.dumps(given))
    except RecursionError:
        raise ValueError("the values are nested too deeply") from None
    if size > MOST_CHARACTERS:
        raise ValueError(f"{size} characters are too many; at most {MOST_CHARACTERS} are allowed")
    return given


TemplateKwargs = Annotated[dict[str, Any], BeforeValidator(_checked)]
"""Variables of the chat template, in the form of vLLM and llama.cpp's server."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """A request's settings. `thinks`: reasoning turned on or off; None: not set. `effort` and `budget` (in
    tokens): the amount. `variables` are passed to the template by name and take precedence.
    """

    thinks: bool | None = None
    effort: Effort | None = None
    budget: int | None = None
    variables: Mapping[str, Any] | None = None


def template_variables(traits: TemplateTraits, wishes: Wishes) -> dict[str, Any]:
    """The template variables for these settings. Raises RequestError for a setting that matters and cannot be
    honoured.
    """
    given = dict(wishes.variables or {})
    thinks = wishes.thinks if wishes.effort is None else wishes.effort != "none"
    if wishes.thinks is not None and thinks is not wishes.thinks:
        raise RequestError("The request turns reasoning both on and off.", hint="Use only one of them.")
    if thinks is None and any(given.get(name) is False for name in SWITCHES):
        thinks = False
    found: dict[str, Any] = {}
    if thinks is True:
        found = _turned_on(traits, wishes)
    elif thinks is False:
        found = _turned_off(traits)
    for name in given.keys() - traits.variables:
        _note_unread(name)
    return {**found, **given}


def _turned_on(traits: TemplateTraits, wishes: Wishes) -> dict[str, Any]:
    wanted = {**dict.fromkeys(SWITCHES, True), EFFORT: wishes.effort, BUDGET: wishes.budget}
    return {name: value for name, value in wanted.items() if value is not None and name in traits.variables}


def _turned_off(traits: TemplateTraits) -> dict[str, Any]:
    found: dict[str, Any] = {name: False for name in SWITCHES if name in traits.variables}
    if EFFORT in traits.variables and "none" in traits.literals:
        found[EFFORT] = "none"
    if not found and (traits.thinks or EFFORT in traits.variables):
        raise RequestError(
            "This model always reasons: its chat template cannot turn reasoning off.",
            hint="Remove the setting (reasoning_effort, thinking), or set reasoning_budget to 0.",
        )
    return found


@lru_cache(maxsize=256)
def _note_unread(name: str) -> None:
    """Log it once for each name: clients send the same variables with every request."""
    logger.info("chat_template_kwargs: the model's chat template does not use %r", name)
