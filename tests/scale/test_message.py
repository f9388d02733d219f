"""Requests on their way from the front to a replica."""

from __future__ import annotations

import pickle

from foredraft.scale.message import Forwarded
from foredraft.server.auth import Caller


def test_a_request_arrives_as_it_was_sent() -> None:
    caller = Caller("ann", "team", requests_per_minute=3, key_hash="sha256:" + "0" * 64)
    headers = ((b"content-type", b"application/json"),)
    sent = Forwarded("POST", "/v1/chat/completions", b"a=b", headers, b'{"model": "x"}', caller, (1, 2))
    assert pickle.loads(pickle.dumps(sent)) == sent
