"""Where the server cannot listen, it says what to change."""

from __future__ import annotations

import socket

import pytest

from foredraft.errors import CapacityError
from foredraft.server.run import check_free


def test_a_port_in_use_wants_another_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CapacityError) as error:
            check_free("127.0.0.1", taken.getsockname()[1])
    assert "--port" in (error.value.hint or "")


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_wants_another_host(host: str) -> None:
    with pytest.raises(CapacityError) as error:
        check_free(host, 0)
    assert "--host" in (error.value.hint or "")


def test_a_free_port_is_fine() -> None:
    check_free("127.0.0.1", 0)
