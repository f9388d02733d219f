"""Where Ray Serve may listen without keys."""

from __future__ import annotations

import pytest

from foredraft.errors import ConfigError
from foredraft.scale.listening import NOWHERE, check_listening
from foredraft.server.auth import hash_key, new_key
from foredraft.server.settings import KeySettings


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_what_other_machines_reach_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match=f"Ray Serve listens on {host}") as raised:
        check_listening(host, ())
    assert "http_options" in str(raised.value.hint)
    check_listening(host, (), allow_public=True)
    check_listening(host, (KeySettings(name="ann", hash=hash_key(new_key())),))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", NOWHERE])
def test_this_machine_does_not(host: str) -> None:
    check_listening(host, ())
