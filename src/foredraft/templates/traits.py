"""The abilities of a model's chat template, and the variables it uses."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final, Literal

from foredraft.templates.thoughts import ThoughtForm

SWITCHES: Final = ("enable_thinking", "thinking")
"""Templates' names for the variable that turns reasoning on and off."""

EFFORT: Final = "reasoning_effort"
BUDGET: Final = "thinking_budget"
REASONING: Final = (*SWITCHES, EFFORT, BUDGET)


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """Result of `child.examine` for a template. The defaults are those of a template that accepts everything
    and uses no variables.

    `error`: why it cannot be used. `variables`: variables that it uses but does not set. `literals`: short
    strings that it compares with or writes. `system`: where it accepts messages of the role "system".
    `alternates`: user and assistant must alternate. `typed`: content must be a list of parts. `thinks`: it
    contains markers of reasoning. `thought`: how it writes what a model thinks; None if it does not.
    """

    error: str | None = None
    variables: Set[str] = frozenset()
    literals: Set[str] = frozenset()
    system: Literal["anywhere", "first", "nowhere"] = "anywhere"
    alternates: bool = False
    typed: bool = False
    thinks: bool = False
    thought: ThoughtForm | None = None
