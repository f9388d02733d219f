"""Why a replica did not start, on its way through Ray, which passes on nothing but a text."""

from __future__ import annotations

import json
import re

from foredraft import errors
from foredraft.errors import BackendError, ForedraftError

_MARK = re.compile(r"\[foredraft (\{.*\})\]")


class StartError(Exception):
    """Raised in a replica for an error of Foredraft: its text, and for `error_in` a line of JSON."""

    def __init__(self, error: ForedraftError) -> None:
        facts = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
        super().__init__(f"{error}\n[foredraft {json.dumps(facts)}]")


def error_in(text: str) -> ForedraftError | None:
    """The error that a replica raised, in a text such as a stack trace; None if there is none."""
    found = _MARK.search(text)
    if found is None:
        return None
    facts = json.loads(found[1])
    kind = getattr(errors, facts["kind"], BackendError)
    error: ForedraftError = kind(facts["message"], hint=facts["hint"])
    return error
