"""Who gets in, as whom, and where a server may listen."""

from __future__ import annotations

import hashlib
import hmac
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.errors import AuthenticationError, ConfigError, PermissionDeniedError
from foredraft.server import auth
from foredraft.server.auth import (
    Authenticator,
    Caller,
    check_bind,
    check_host_header,
    hash_key,
    new_key,
)
from foredraft.server.checks import is_loopback
from foredraft.server.settings import KeySettings

ALICE, BOB, ADMIN = ("ft-" + letter * 43 for letter in "aBc")
KEYS = (
    KeySettings(name="alice", hash=hash_key(ALICE), requests_per_minute=60, max_concurrent=2),
    KeySettings(name="bob", hash=hash_key(BOB), scope="team"),
)
WITH_ADMIN = Authenticator(KEYS, hash_key(ADMIN))


def test_new_keys() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(re.fullmatch(r"ft-[A-Za-z0-9_-]{43}", key) for key in keys)


def test_the_hash_is_sha256() -> None:
    assert hash_key("ft-x") == "sha256:" + hashlib.sha256(b"ft-x").hexdigest()
    assert KeySettings(name="a", hash=hash_key(new_key())).hash.startswith("sha256:")


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "BEARER   {}  ", "{}", "  {} "])
def test_a_key_is_recognised(form: str) -> None:
    assert WITH_ADMIN.check(form.format(ALICE)) == Caller(
        "alice", "alice", requests_per_minute=60, max_concurrent=2, max_priority=0, key_hash=hash_key(ALICE)
    )
    assert WITH_ADMIN.check(form.format(BOB)).scope == "team"
    assert WITH_ADMIN.check(form.format(ADMIN)).admin


@pytest.mark.parametrize("headers", [(), (None,), (None, None), ("",), ("  ", None)])
def test_no_key(headers: tuple[str | None, ...]) -> None:
    with pytest.raises(AuthenticationError, match="No API key was given") as error:
        WITH_ADMIN.check(*headers)
    assert (error.value.status, error.value.code) == (401, "invalid_api_key")
    assert "x-api-key" in (error.value.hint or "")


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer ",
        f"Basic {ALICE}",
        ALICE[:-1],
        ALICE + "x",
        ALICE.swapcase(),
        f"{ALICE} {BOB}",
        KEYS[0].hash,
        "Bearer " + KEYS[0].hash,
        "é\udcff",
    ],
)
def test_a_wrong_key(header: str) -> None:
    with pytest.raises(AuthenticationError, match="not valid") as error:
        WITH_ADMIN.check(header)
    assert ALICE[3:-1] not in str(error.value)
    assert KEYS[0].hash not in str(error.value)


@given(st.text(max_size=80))
def test_no_text_gets_in(text: str) -> None:
    with pytest.raises(AuthenticationError):
        WITH_ADMIN.check(text)


def test_one_right_header_is_enough() -> None:
    assert WITH_ADMIN.check("Bearer sk-other", ALICE).name == "alice"
    assert WITH_ADMIN.check(f"Bearer {BOB}", "sk-other").name == "bob"
    assert WITH_ADMIN.check(None, ALICE).name == "alice"


@pytest.mark.parametrize("header", [None, "Bearer sk-anything", "anything"])
def test_without_keys_everybody_is_the_local_caller(header: str | None) -> None:
    assert Authenticator().check(header) == Caller("local", "", admin=True)


def test_an_admin_key_without_keys() -> None:
    authenticator = Authenticator((), hash_key(ADMIN))
    assert authenticator.check(f"Bearer {ADMIN}").admin
    for header in (None, "Bearer sk-anything"):
        assert authenticator.check(header) == Caller("local", "", admin=False)


def test_keys_without_an_admin_key_have_no_admin() -> None:
    caller = Authenticator(KEYS).check(ALICE)
    with pytest.raises(PermissionDeniedError, match="admin") as error:
        caller.require_admin()
    assert error.value.status == 403
    WITH_ADMIN.check(ADMIN).require_admin()


@pytest.mark.parametrize("header", [ALICE, BOB, ADMIN, "wrong"])
def test_every_key_is_compared(header: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def spy(stored: bytes, given: bytes) -> bool:
        compared.append(stored)
        return hmac.compare_digest(stored, given)

    class Spied:
        compare_digest = staticmethod(spy)

    monkeypatch.setattr(auth, "hmac", Spied)
    if header == "wrong":
        with pytest.raises(AuthenticationError):
            WITH_ADMIN.check(header)
    else:
        WITH_ADMIN.check(header)
    assert [f"sha256:{stored.hex()}" for stored in compared] == [
        *(key.hash for key in KEYS),
        hash_key(ADMIN),
    ]


# --- where to listen -----------------------------------------------------------------------------------

LOOPBACK = [
    "127.0.0.1",
    "127.8.9.10",
    "::1",
    "[::1]",
    "localhost",
    "LocalHost",
    "localhost.",
    "::ffff:127.0.0.1",
]
PUBLIC = [
    "0.0.0.0",
    "::",
    "192.168.1.5",
    "example.org",
    "localhost.example.org",
    "",
    "::ffff:10.0.0.1",
    "127.1",
]


def test_what_is_loopback() -> None:
    assert [host for host in LOOPBACK if not is_loopback(host)] == []
    assert [host for host in PUBLIC if is_loopback(host)] == []


@pytest.mark.parametrize("host", PUBLIC)
def test_a_public_address_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="no API key"):
        check_bind(host, ())
    check_bind(host, KEYS)
    check_bind(host, (), allow_public=True)


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_needs_no_key(host: str) -> None:
    check_bind(host, ())


@pytest.mark.parametrize(
    "header", [None, "localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "[::1]", " LOCALHOST:1 "]
)
def test_names_of_this_computer(header: str | None) -> None:
    check_host_header(header, "127.0.0.1", ())


@pytest.mark.parametrize(
    "header", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example:80", "", ":80"]
)
def test_a_page_that_rebinds_its_name(header: str) -> None:
    with pytest.raises(PermissionDeniedError, match="localhost"):
        check_host_header(header, "127.0.0.1", ())
    check_host_header(header, "127.0.0.1", KEYS)
    check_host_header(header, "127.0.0.1", (), allow_public=True)
    check_host_header(header, "0.0.0.0", ())
