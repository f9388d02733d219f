"""`run --compare`: the same answer with and without speculation, and the speed of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from foredraft.cli.render import times_text
from foredraft.cli.units import counted
from foredraft.config import OFF
from foredraft.errors import BackendError
from foredraft.types import Completion, SamplingParams

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine
    from foredraft.engine.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two answers to one prompt with one seed."""

    speculated: Completion
    plain: Completion

    @property
    def speedup(self) -> float | None:
        """Ratio of the times after the first token; None if an answer has no more tokens."""
        rates = [each.timings.predicted_per_second for each in (self.speculated, self.plain)]
        return rates[0] / rates[1] if self.speculated.timings.predicted_n > 1 and rates[1] > 0 else None

    @property
    def same(self) -> bool:
        """Whether both texts have the same bytes."""
        return self.speculated.text == self.plain.text and self.speculated.tokens == self.plain.tokens

    def as_dict(self) -> dict[str, Any]:
        """The comparison as an object for `run --json`."""
        return {
            "tokens_per_second": self.speculated.timings.predicted_per_second,
            "plain_tokens_per_second": self.plain.timings.predicted_per_second,
            "speedup": self.speedup,
            "same_bytes": self.same,
        }

    def show(self, console: Console) -> None:
        """Show a line for each answer, and the result."""
        for what, each in (("with speculation", self.speculated), ("plain", self.plain)):
            timings = each.timings
            console.print(
                f"{what:<16} {timings.predicted_per_second:8.1f} tokens/s "
                f"{timings.predicted_ms / 1e3:8.2f} s",
                soft_wrap=not console.is_terminal,
            )
        faster = times_text(self.speedup) if self.speedup else "too short to compare"
        console.print(
            f"[bold]{escape(faster)}[/] · {escape(self._bytes())}", soft_wrap=not console.is_terminal
        )

    def _bytes(self) -> str:
        mine, other = self.speculated.text.encode(), self.plain.text.encode()
        if self.same:
            return f"the same {counted(len(mine), 'byte')}"
        first = next((i for i, pair in enumerate(zip(mine, other, strict=False)) if pair[0] != pair[1]), None)
        at = min(len(mine), len(other)) if first is None else first
        spec = self.speculated.speculation
        why = f" (not exact: {spec.exact_reason})" if not spec.exact else ", which is a bug: please report it"
        return f"the texts differ from byte {at + 1:,} on{why}"


def compare(
    engine: Engine, prompt: Prompt, params: SamplingParams, speculated: Completion, console: Console
) -> Comparison:
    """Generate an answer again without speculation. `params` must have the first answer's seed."""
    engine.set_speculation(OFF)
    with console.status("The same again without speculation…"):
        plain = engine.generate(prompt, params)
    if plain.error:
        raise BackendError(f"The answer without speculation failed: {plain.error}")
    return Comparison(speculated, plain)
