"""Totals of a chat session over its turns."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.markup import escape
from rich.table import Table

from foredraft.types import Completion, DrafterStats, FinishReason


@dataclass(slots=True)
class Totals:
    """Sums over the answers of a session. `last` is the newest answer."""

    turns: int = 0
    stopped: int = 0
    tokens: int = 0
    decode_ms: float = 0.0
    rounds: int = 0
    committed: float = 0.0
    compared_ms: float = 0.0
    plain_ms: float = 0.0
    drafters: dict[str, DrafterStats] = field(default_factory=dict)
    last: Completion | None = None

    def add(self, completion: Completion) -> None:
        """Count an answer, complete or stopped."""
        timings, spec = completion.timings, completion.speculation
        self.turns += 1
        self.stopped += completion.finish_reason is FinishReason.ABORT
        self.tokens += timings.predicted_n
        self.decode_ms += timings.predicted_ms
        self.rounds += spec.rounds
        self.committed += spec.rounds * (spec.acceptance_length or 0.0)
        if spec.estimated_speedup is not None:
            # Speedup × time taken is the time of plain decoding; these times can be added.
            self.compared_ms += timings.predicted_ms
            self.plain_ms += spec.estimated_speedup * timings.predicted_ms
        for name, stats in spec.drafters.items():
            old = self.drafters.get(name, DrafterStats())
            self.drafters[name] = DrafterStats(
                drafts=old.drafts + stats.drafts,
                drafted=old.drafted + stats.drafted,
                accepted=old.accepted + stats.accepted,
                ms=old.ms + stats.ms,
            )
        self.last = completion

    @property
    def per_second(self) -> float:
        """Generated tokens per second of decoding."""
        return 1e3 * self.tokens / self.decode_ms if self.decode_ms else 0.0

    @property
    def acceptance_length(self) -> float | None:
        """Committed tokens per round."""
        return self.committed / self.rounds if self.rounds else None

    @property
    def estimated_speedup(self) -> float | None:
        """Estimated speedup over the turns that had a plain round to compare with."""
        return self.plain_ms / self.compared_ms if self.compared_ms else None

    def table(self, context_length: int) -> Table:
        """The table that `/stats` shows."""
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for label, value in self._rows(context_length).items():
            table.add_row(label, escape(value))
        return table

    def _rows(self, context_length: int) -> dict[str, str]:
        stopped = f" ({self.stopped} stopped)" if self.stopped else ""
        rows = {
            "turns": f"{self.turns}{stopped}",
            "tokens": f"{self.tokens:,}",
            "tokens/s": f"{self.per_second:.1f}",
        }
        for name, stats in self.drafters.items():
            share = f" ({100 * stats.accepted / stats.drafted:.0f} %)" if stats.drafted else ""
            rows[f"drafter {name}"] = f"drafted {stats.drafted:,}, accepted {stats.accepted:,}{share}"
        length, speedup = self.acceptance_length, self.estimated_speedup
        rows["acceptance length"] = "–" if length is None else f"{length:.2f} tokens per round"
        noise = ", the difference is within noise" if speedup == 1 else ""
        rows["estimated speedup"] = "–" if speedup is None else f"{speedup:.2f} × plain decoding{noise}"
        return rows | (_last_rows(self.last, context_length) if self.last else {})


def _last_rows(last: Completion, context_length: int) -> dict[str, str]:
    usage, spec = last.usage, last.speculation
    why = "" if spec.active or not spec.reason else f" (no drafts in the last answer: {spec.reason})"
    rows = {
        "speculation": spec.configured + why,
        "exact": f"yes: {spec.exact_reason}" if spec.exact else f"no: {spec.exact_reason}",
        "last prompt": f"{usage.prompt_tokens:,} tokens, {usage.cached_tokens:,} of them cached",
        "context": f"{usage.prompt_tokens + usage.completion_tokens:,} of {context_length:,} tokens",
    }
    return rows | {f"note {number}": note for number, note in enumerate(spec.notes, 1)}
