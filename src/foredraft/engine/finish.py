"""The end of a request: its last event, with everything there is to say about it."""

from __future__ import annotations

from foredraft.engine.request import Request
from foredraft.engine.setup import Setup
from foredraft.engine.verify import keeps_bytes
from foredraft.types import Capabilities, FinishEvent


def finish_event(request: Request, setup: Setup, capabilities: Capabilities) -> FinishEvent:
    """The FinishEvent of a request whose `finish` is set."""
    assert request.finish is not None
    return FinishEvent(
        request.id,
        request.finish,
        request.text.flush(),
        request.usage(),
        request.timings(),
        request.stats.summary(
            configured=setup.configured,
            reason=setup.why_not(request),
            exact=exactness(request, capabilities),
            notes=setup.all_notes(),
        ),
        request.error,
        request.notice,
    )


def exactness(request: Request, capabilities: Capabilities) -> tuple[bool, str]:
    """(whether the tokens are those of plain decoding, how that is known or why it is not so)."""
    if not keeps_bytes(request.params):
        return False, f"verify={request.params.verify} keeps the distribution, not the bytes"
    note = capabilities.invariance_note
    if not capabilities.batch_invariant and request.stats.preemptions:
        note = f"{note}; read again after preemption, in batches of other sizes"
    return capabilities.batch_invariant, note
