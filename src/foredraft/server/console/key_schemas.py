"""API keys and their use."""

from __future__ import annotations

from foredraft.server.console.shapes import Change, Reply


class KeyRow(Reply):
    """One key. `requests` (answers, of which a request may ask for several), `tokens` (generated) and
    `last_used` (Unix time) are of what has ended since `Overview.since`; `running`: requests that run.
    """

    name: str
    scope: str
    requests_per_minute: int | None
    max_concurrent: int | None
    max_priority: int
    requests: int
    tokens: int
    running: int
    last_used: float | None


class Keys(Reply):
    """`version` as in `ModelSettingsReply`."""

    version: str
    keys: list[KeyRow]
    admin_key: bool


class NewKey(Change):
    """`max_concurrent` and `requests_per_minute`: null is no limit. `scope`: keys with the same one share
    what is learned from texts; null is the key's own. `version`: refuse the change if the file has another.
    """

    version: str | None = None
    name: str
    scope: str | None = None
    requests_per_minute: int | None = None
    max_concurrent: int | None = None
    max_priority: int = 0


class KeyLimits(Change):
    """New limits of a key, all of them; otherwise as `NewKey`."""

    version: str | None = None
    scope: str | None = None
    requests_per_minute: int | None = None
    max_concurrent: int | None = None
    max_priority: int = 0


class MadeKey(Reply):
    """A new key, shown this once. `admin_key`: made with the first key; without it no client could change
    anything any more.
    """

    name: str
    key: str
    admin_key: str | None
