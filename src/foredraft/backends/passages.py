"""The token sequences that the exactness probe compares: real texts in the model's own tokens, and random
tokens of several seeds.

Weights meet other activations with each of them, and where two sums differ in few inputs only, one text does
not show it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foredraft.images import ImageSpan, PreparedImage
from foredraft.protocols import Model, Tokenizer

_FEWEST = 4
"""Distinct tokens that a text must have to be of use; a tokenizer may know none of its characters."""

_LENGTH = 4096
"""Tokens of a random passage before it repeats itself."""

_BEFORE_IMAGE = 8
"""Tokens before an image."""

SEEDS = (7, 11, 13)

PROSE = """The lighthouse keeper had counted the ships for thirty years, and on the morning of the storm he
counted none. "Nobody sails before a glass as low as that," he told the boy, who had rowed over
with bread, lamp oil and a letter from the harbour office. They ate by the window. Far out the
water was the colour of slate; closer in it broke over the bar in long white lines, 12 or 14 of
them, each a little higher than the one before."""

CODE = '''def merge(left: list[int], right: list[int]) -> list[int]:
    """Two sorted lists as one."""
    merged, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i]); i += 1
        else:
            merged.append(right[j]); j += 1
    return merged + left[i:] + right[j:]

SELECT name, COUNT(*) AS n FROM orders WHERE total >= 99.5 GROUP BY name; -- {"id": 17, "tags": ["a", null]}
'''

SCRIPTS = (
    "Καλημέρα σας· το πλοίο φεύγει στις οκτώ από την παλιά προβλήτα. "
    "Сегодня утром шёл снег, и поезд опоздал на час. "
    "今天早上下雪了,火车晚点一个小时。駅の前で待っています。"
    "आज सुबह बारिश हुई और सड़कें खाली थीं। "
    "صباح الخير، القطار متأخر اليوم."
)


@dataclass(frozen=True, slots=True)
class Passage:
    """Tokens that go on without end, by repeating themselves."""

    name: str
    tokens: tuple[int, ...]

    def rows(self, start: int, count: int) -> list[int]:
        """The `count` tokens from position `start` on."""
        return [self.tokens[i % len(self.tokens)] for i in range(start, start + count)]


def behind(passage: Passage, image: PreparedImage) -> tuple[Passage, tuple[ImageSpan, ...]]:
    """The passage with an image after its first tokens, and the image's runs in it."""
    start = _BEFORE_IMAGE
    tokens = (*passage.rows(0, start), *image.tokens, *passage.rows(start, _LENGTH))
    spans = [ImageSpan(start + first, count, image, run) for run, (first, count) in enumerate(image.runs)]
    return Passage(f"{passage.name} behind an image", tokens), tuple(spans)


def passages(model: Model) -> list[Passage]:
    """Texts and random tokens in turns, those first that are compared when there is little time."""
    random = [_random(seed, model.info.vocab_size) for seed in SEEDS]
    texts = [
        _encoded(name, text, model.tokenizer, model.info.vocab_size)
        for name, text in (("prose", PROSE), ("code", CODE), ("other scripts", SCRIPTS))
    ]
    found = [texts[0], random[0], *texts[1:], *random[1:]]
    return [passage for passage in found if passage is not None]


def _random(seed: int, vocabulary: int) -> Passage:
    drawn = np.random.default_rng(seed).integers(0, vocabulary, _LENGTH)
    return Passage(f"random tokens, seed {seed}", tuple(map(int, drawn)))


def _encoded(name: str, text: str, tokenizer: Tokenizer, vocabulary: int) -> Passage | None:
    tokens = tuple(token for token in tokenizer.encode(text) if 0 <= token < vocabulary)
    return Passage(name, tokens) if len(set(tokens)) >= _FEWEST else None
