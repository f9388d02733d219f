"""Which prompts a head learns from, which ones say when it is best, and which ones how good it is in the end.

The best of several heads on some answers looks better there than it is, so the last figure has prompts of its
own. A prompt's part depends on the prompt alone, so that all answers to it are on the same side in every
run; where no prompt falls to a part, the nearest one does. Prompts that come later can only push that one out
again: what was learned from or chosen by is never measured on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import TypeAlias

Prompt: TypeAlias = tuple[int, ...]

FINAL_OF = 12
"""One prompt in this number is held out for the last figure."""

CHOOSING_OF = 24
"""One of the others in this number is held out to choose the best head."""


class Part(IntEnum):
    """What the answers to a prompt are for."""

    LEARNING = 0
    CHOOSING = 1
    FINAL = 2


def parts_of(prompts: Sequence[Prompt], usable: Collection[Prompt]) -> list[Part]:
    """The part of each prompt. `usable`: those whose answers can be measured on."""
    final = _nearest(usable, FINAL_OF, 1)
    choosing = _nearest({one for one in usable if one not in final}, CHOOSING_OF, FINAL_OF)

    def part(prompt: Prompt) -> Part:
        if prompt in final:
            return Part.FINAL
        return Part.CHOOSING if prompt in choosing else Part.LEARNING

    return [part(prompt) for prompt in prompts]


def _nearest(prompts: Collection[Prompt], of: int, shift: int) -> set[Prompt]:
    """One prompt in `of`, and at least one if there is any."""
    if not prompts:
        return set()
    keys = {prompt: _key(prompt, of, shift) for prompt in prompts}
    chosen = {prompt for prompt, (rest, _) in keys.items() if rest == 0}
    return chosen or {min(keys, key=lambda prompt: keys[prompt])}


def _key(prompt: Prompt, of: int, shift: int) -> tuple[int, int]:
    digest = hashlib.sha256(repr(prompt).encode()).digest()
    number = int.from_bytes(digest[:4], "big") // shift
    return number % of, number
