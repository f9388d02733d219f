"""What speculation runs on at the moment: the drafters, the planner, and what to say about them."""

from __future__ import annotations

from dataclasses import dataclass

from foredraft.engine.drafting import Drafters
from foredraft.engine.request import Request
from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.protocols import Planner


@dataclass(frozen=True, slots=True)
class Setup:
    """`configured` is the speculation string; `reason` why speculation cannot run at all, None if it can;
    `notes` what had to be left out. `learner` is the planner where it is one that learns what to keep.
    """

    drafters: Drafters
    planner: Planner
    configured: str
    reason: str | None = None
    notes: tuple[str, ...] = ()
    learner: AdaptivePlanner | None = None

    def why_not(self, request: Request) -> str | None:
        """Why nothing was drafted for a request; None when something was."""
        if request.stats.drafted:
            return None
        if self.reason is None and not request.max_draft:
            return "switched off for this request"
        return self.why_nothing() or "no draft worth verifying was found for this request"

    def why_nothing(self) -> str | None:
        """Why nothing is drafted at the moment, whatever is asked; None while something is."""
        if self.reason is not None:
            return self.reason
        if not self.drafters:
            return "every drafter failed (see the notes)"
        return self.planner.reason()

    def all_notes(self) -> tuple[str, ...]:
        """What a user should know: drafters that were left out or failed, and why."""
        return (*self.notes, *self.drafters.notes)
