"""Who is asking, and what this server lets them do."""

from __future__ import annotations

from foredraft.server.console.shapes import Reply


class Session(Reply):
    """`caller`: the name of the key, or "local". `admin`: whether the caller may change things. `open`: the
    server has no keys, so every client is the local caller. `admin_key`: there is an admin key.
    `settings_file`: where changes are saved, for the admin; it need not exist yet. `recording`: texts of
    requests are kept in memory for the admin. `started`: Unix time in seconds.
    """

    caller: str
    admin: bool
    open: bool
    admin_key: bool
    version: str
    settings_file: str | None
    recording: bool
    started: float
