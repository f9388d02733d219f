"""Where Ray Serve may listen for a server without keys."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.errors import ConfigError
from foredraft.server.auth import check_bind
from foredraft.server.settings import KeySettings

NOWHERE = "localhost"
"""For the checks, where Serve has no HTTP proxy."""


def check_listening(host: str, keys: Sequence[KeySettings], *, allow_public: bool = False) -> None:
    """Raises ConfigError if other machines could use a server without keys, since Serve listens on `host`.
    A Serve that runs already listens where it was told to by who has started it.
    """
    try:
        check_bind(host, keys, allow_public=allow_public)
    except ConfigError:
        raise ConfigError(
            f"Ray Serve listens on {host}, which other machines can reach, and no API key is configured.",
            hint="Create a key with 'foredraft keys new NAME', or let Serve listen on 127.0.0.1: "
            "'http_options: {host: 127.0.0.1}' in its config file, before it starts.",
        ) from None
