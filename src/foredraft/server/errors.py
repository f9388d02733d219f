"""Errors as OpenAI's API gives them: {"error": {"message", "type", "param", "code"}}.

The paths of Anthropic's API answer in that API's form.
Nothing of the inside goes out: no path, no stack trace. What is not one of our errors is logged with a
number, and the answer names that number only.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from foredraft.errors import ForedraftError
from foredraft.server.anthropic.errors import anthropic_error, is_anthropic
from foredraft.server.request_log import current
from foredraft.server.strict_json import RepeatedKeyError
from foredraft.server.unknown_fields import MISSPELT

logger = logging.getLogger(__name__)

CLIENT_CLOSED = 499
"""nginx's status for a client that did not wait."""

HALF = "has an escape such as \\ud800 that stands for half a character."

OF_BODIES = (ValueError, RecursionError, ClientDisconnect)
"""What reading a body raises because of the body. Anything else is a fault of ours."""

MOST_MESSAGE = 1000
MOST_PARAM = 200
"""Characters of a message and of a parameter's name: a client's megabyte does not come back."""

MOST_LOOKED_AT = 100
"""Of pydantic's complaints: there may be one for every item of a long list."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(
    message: str, *, status: int, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """The body of an error, of an answer or of a stream's last event; the request's log line says it, too."""
    current().failed(code, message)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    param = None if param is None else _cut(param, MOST_PARAM)
    return {"error": {"message": _cut(message, MOST_MESSAGE), "type": kind, "param": param, "code": code}}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} …"


def of_error(error: ForedraftError) -> dict[str, Any]:
    """The body for one of our errors."""
    return error_body(str(error), status=error.status, code=error.code)


def unexpected(error: BaseException) -> dict[str, Any]:
    """The body for an error that nobody expected; the log has the rest under the same number."""
    number = secrets.token_hex(4)
    logger.error("Unexpected error %s", number, exc_info=error)
    return error_body(f"Internal error {number}. The server's log says more.", status=500, code="internal")


def respond(
    path: str, body: dict[str, Any], status: int, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """An error's answer, in the form of the API that was asked at this path. `body` is in OpenAI's."""
    if is_anthropic(path):
        body = anthropic_error(body, status)
    return JSONResponse(body, status, headers)


def error_response(error: ForedraftError, path: str) -> JSONResponse:
    """The answer for one of our errors, with what HTTP wants beside it."""
    headers = {}
    if error.status in (429, 503):
        headers["Retry-After"] = str(max(1, ceil(getattr(error, "retry_after", 1.0))))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == 415:
        headers |= {"Accept": "application/json", "Accept-Encoding": "identity"}
    return respond(path, of_error(error), error.status, headers)


class ClientGoneError(Exception):
    """The client closed the connection before its answer was ready."""


def install(app: FastAPI) -> None:
    """Have the app answer every error with `respond`; those that nobody expects are left to the gate."""

    @app.exception_handler(ForedraftError)
    async def ours(request: Request, error: ForedraftError) -> JSONResponse:
        return error_response(error, request.url.path)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        message, param = describe(error.errors(), error.body)
        body = error_body(message, status=400, code="invalid_request", param=param)
        return respond(request.url.path, body, 400)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        # The framework takes whatever reading a body raises for a body that cannot be read.
        if isinstance(error.__cause__, RequestValidationError):
            return await invalid(request, error.__cause__)
        if isinstance(error.__cause__, ForedraftError):
            return await ours(request, error.__cause__)
        return _of_http(request, error)

    @app.exception_handler(UnicodeEncodeError)
    async def surrogate(request: Request, error: UnicodeEncodeError) -> JSONResponse:  # noqa: ARG001
        """JSON can hold half a character, an escaped surrogate. Only a body can bring one in here."""
        body = error_body(f"The body {HALF}", status=400, code="invalid_request")
        return respond(request.url.path, body, 400)

    @app.exception_handler(ClientGoneError)
    async def gone(request: Request, error: ClientGoneError) -> Response:  # noqa: ARG001
        return Response(status_code=CLIENT_CLOSED)  # nobody reads it


def _of_http(request: Request, error: HTTPException) -> JSONResponse:
    """The answer for an error of the framework's."""
    message, code, param = str(error.detail), message_code(error.status_code), None
    if error.status_code == 400 and error.__cause__ is not None:  # the framework could not read the body
        if not isinstance(error.__cause__, OF_BODIES):
            return respond(request.url.path, unexpected(error.__cause__), 500)
        message, code = f"The body {_unreadable(error.__cause__)}.", "invalid_request"
        param = error.__cause__.key if isinstance(error.__cause__, RepeatedKeyError) else None
    elif error.status_code == 404:
        message = f"There is no {request.method} {request.url.path} here.{_meant(request)}"
    elif error.status_code == 405:
        message = f"{request.method} is not allowed for {request.url.path}."
    body = error_body(message, status=error.status_code, code=code, param=param)
    return respond(request.url.path, body, error.status_code, error.headers)


def _unreadable(error: BaseException) -> str:
    """Why Python's parser takes a body for no JSON, where it does not say so itself."""
    if isinstance(error, UnicodeDecodeError):
        return f"is not valid JSON: it is not {error.encoding.upper()} text"
    if isinstance(error, RepeatedKeyError):
        return f"has the key {_cut(error.key, MOST_PARAM)!r} twice in one object"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, ValueError):
        return "holds a number of too many digits"
    return "could not be read"


def _meant(request: Request) -> str:
    """What is there at the path that a client with a wrong base URL wants."""
    bare = path = request.url.path
    while bare.startswith("/v1/"):
        bare = bare.removeprefix("/v1")
    known = request.app.openapi()["paths"]
    meant = next((each for each in (f"/v1{bare}", bare) if each != path and each in known), None)
    return f" There is {meant}: is the base URL right?" if meant else ""


def message_code(status: int) -> str:
    """The code of an error that only has an HTTP status."""
    return {404: "not_found", 405: "method_not_allowed"}.get(status, "http_error")


def describe(errors: Sequence[Any], body: object) -> tuple[str, str | None]:
    """(what is wrong, which parameter) of pydantic's complaints about a body: the first, or the one of its
    alternatives that leads deepest into the body.
    """
    at = errors[0]["loc"][:2]
    ways = [(_way(error, body), error) for error in errors[:MOST_LOOKED_AT] if error["loc"][:2] == at]
    way, first = max(ways, key=lambda found: len(found[0]))
    param = ".".join(way) or None
    kind, text = first.get("type", ""), str(first.get("msg", "is not valid"))
    if kind == MISSPELT:
        shown = None if param is None else _cut(param, MOST_PARAM)
        return f"Unknown parameter: {shown!r}. Did you mean {text!r}?", param
    if kind == "missing":
        return f"Missing required parameter: {param!r}." if param else "The body is empty.", param
    if kind == "string_unicode":
        return f"{param or 'The body'} {HALF}", param
    if kind == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return f"The body is not valid JSON: {reason}.", None
    text = text.removeprefix("Value error, ")
    return (f"{param}: {text}." if param else f"{text}.").replace("..", "."), param


def _way(error: Mapping[str, Any], body: object) -> list[str]:
    """The keys that lead to an error, with the one that is missing."""
    loc = error["loc"][1:]  # the first is "body"
    return _place(loc, body) + ([str(part) for part in loc[-1:]] if error["type"] == "missing" else [])


def _place(loc: Sequence[Any], body: Any) -> list[str]:
    """Where in the body pydantic's `loc` leads: the longest way through it. What else is in it are names of
    the alternatives of a type, which may be the name of a field too.
    """
    if not loc:
        return []
    without = _place(loc[1:], body)
    known = body if isinstance(body, Mapping) else range(len(body)) if isinstance(body, list) else ()
    if loc[0] not in known:
        return without
    way = [str(loc[0]), *_place(loc[1:], body[loc[0]])]
    return way if len(way) > len(without) else without
