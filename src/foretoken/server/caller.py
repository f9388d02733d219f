"""Who sent a request."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request


@dataclass(frozen=True, slots=True)
class Caller:
    """A client: the name for logs, and the scope within which text may be remembered and drafted from."""

    name: str = "local"
    scope: str = ""

    @classmethod
    def of(cls, request: Request) -> Caller:
        """The caller that authentication found; without keys everybody is the same local one."""
        found = getattr(request.state, "caller", None)
        return found if isinstance(found, Caller) else cls()
