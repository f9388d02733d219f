"""What a model's chat template can do, and which variables it reads."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final, Literal

SWITCHES: Final = ("enable_thinking", "thinking")
"""What templates call the variable that turns reasoning on and off."""

EFFORT: Final = "reasoning_effort"
BUDGET: Final = "thinking_budget"
REASONING: Final = (*SWITCHES, EFFORT, BUDGET)


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What `child.examine` finds out about a template. The defaults are those of a template that takes
    everything and reads nothing.

    `error`: why it cannot be used at all. `variables`: what it reads that it does not set itself. `literals`:
    the short strings that it compares with or writes. `system`: where it takes messages of the role "system".
    `alternates`: it insists that user and assistant take turns. `typed`: it reads content as a list of parts
    only. `thinks`: it knows marks of reasoning.
    """

    error: str | None = None
    variables: Set[str] = frozenset()
    literals: Set[str] = frozenset()
    system: Literal["anywhere", "first", "nowhere"] = "anywhere"
    alternates: bool = False
    typed: bool = False
    thinks: bool = False
