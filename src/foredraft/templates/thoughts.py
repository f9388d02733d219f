"""How a chat template marks what a model thinks before it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

HARMONY: Final = ("<|channel|>analysis<|message|>", "<|end|>")
HARMONY_FINAL: Final = "<|start|>assistant<|channel|>final<|message|>"

MARKS: Final[tuple[tuple[str, str], ...]] = (
    HARMONY,
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("◁think▷", "◁/think▷"),
)
"""What models write before and after a thought. The first pair that a template has counts."""

Place: TypeAlias = Literal["reasoning_content", "reasoning", "thinking", "part", "content"]
"""Where a template looks for an earlier thought: in a field of the message, in a content part of the type
"thinking", or between its marks in the text.
"""


@dataclass(frozen=True, slots=True)
class ThoughtForm:
    """A template's form of a thought. `opening` and `closing` are its marks. `before` and `after` are all
    that the template writes around the thought of a finished answer: the marks, with their white space.
    """

    opening: str
    closing: str
    before: str
    after: str
    place: Place = "reasoning_content"


def marks_of(source: str) -> tuple[str, str] | None:
    """The marks in a template's source; None if it has none."""
    for opening, closing in MARKS:
        if (opening, closing) == HARMONY:
            if "<|channel|>" in source and "<|message|>" in source:
                return HARMONY
        elif opening in source or closing in source:
            return opening, closing
    return None


def usual_form(opening: str, closing: str, space: str | None = None) -> ThoughtForm:
    """The form of a template that writes no earlier thought; `space` is what follows the opening where the
    template begins an answer with it.
    """
    if (opening, closing) == HARMONY:
        return ThoughtForm(opening, closing, opening, closing + HARMONY_FINAL)
    if not opening.startswith("<") or opening.startswith("<|"):
        return ThoughtForm(opening, closing, opening + (space or ""), (space or "") + closing)
    line = "\n" if space is None else space
    return ThoughtForm(opening, closing, opening + line, f"{line}{closing}\n\n")
