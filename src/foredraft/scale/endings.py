"""The last event of a stream that broke off, in the form of the API that it belongs to."""

from __future__ import annotations

import re

from foredraft.errors import ForedraftError
from foredraft.server.anthropic.errors import anthropic_error, is_anthropic
from foredraft.server.errors import of_error
from foredraft.server.sse import sse

RESPONSES = "/v1/responses"
_NUMBER = re.compile(rb'"sequence_number":(\d+)')


def broken_off(error: ForedraftError, path: str, before: bytes) -> bytes:
    """The event that tells a client why its stream ends; `before`: the end of what it got, whole events.

    What `stream_response` sends of an error inside of a replica, where the state of the answer is known, is
    the same but for the API of responses: this has no answer so far, and is an `error` instead of a
    `response.failed`.
    """
    body = of_error(error)
    if is_anthropic(path):
        return sse(anthropic_error(body, error.status), "error").encode()
    if path != RESPONSES:
        return sse(body).encode()
    numbers = _NUMBER.findall(before)
    number = int(numbers[-1]) + 1 if numbers else 0
    event = {"type": "error", "code": error.code, "message": body["error"]["message"], "param": None}
    return sse({**event, "sequence_number": number}, "error").encode()
