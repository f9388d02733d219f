"""What comparing single rows with those of larger forwards found (`comparison`)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows that differ from those computed one by one: `bytes` of `of` bytes of their logits.

    `rows`: of the forward, or of the one before where it only shows in the next. `beside`: another sequence.
    """

    rows: int
    depth: int
    passage: str
    bytes: int
    of: int
    beside: bool = False

    def __str__(self) -> str:
        where = "beside another sequence" if self.beside else f"with {self.rows} rows"
        return (
            f"{self.bytes:,} of {self.of:,} bytes of the logits differ {where} "
            f"at a depth of {self.depth:,} tokens ({self.passage})"
        )


@dataclass(slots=True)
class Result:
    """What was compared: the numbers of rows, the depths and the passages, how many logits, and whether
    several sequences were, and text behind an image; and the differences found, the fewest rows first.
    `complete`: nothing was left out for time. `missed`: depths that are needed and would take too long to
    compute the tokens before them.
    """

    sizes: set[int] = field(default_factory=set)
    depths: set[int] = field(default_factory=set)
    passages: set[str] = field(default_factory=set)
    comparisons: int = 0
    logits: int = 0
    together: bool = False
    behind_image: bool = False
    complete: bool = True
    missed: set[int] = field(default_factory=set)
    differences: list[Difference] = field(default_factory=list)

    @property
    def exact(self) -> int:
        """The largest compared number of rows up to which nothing differs; 1 if there is none."""
        least = min((found.rows for found in self.differences), default=None)
        return max((size for size in self.sizes if least is None or size < least), default=1)
