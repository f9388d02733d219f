"""Errors in the form of OpenAI's API: {"error": {"message", "type", "param", "code"}}.

Paths of Anthropic's API answer in that API's form. Internals are never sent: no path, no stack trace.
Unexpected errors are logged with a number, and the answer contains only that number.
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

from foredraft.errors import ConfigError, ForedraftError, RequestError
from foredraft.server.anthropic.errors import anthropic_error, is_anthropic
from foredraft.server.request_log import current
from foredraft.server.strict_json import RepeatedKeyError
from foredraft.server.told import names_of_paths
from foredraft.server.unknown_fields import MISSPELT

logger = logging.getLogger(__name__)

CLIENT_CLOSED = 499
"""nginx's status for a client that closed the connection."""

HALF = "contains a lone surrogate, an escape such as \\ud800."

OF_BODIES = (ValueError, RecursionError, ClientDisconnect)
"""Exceptions that an invalid body raises while it is read. Any other exception is a bug of the server."""

MOST_MESSAGE = 1000
MOST_PARAM = 200
"""Maximum characters of a message and of a parameter's name, so that large input is not sent back."""

MOST_LOOKED_AT = 100
"""Maximum number of pydantic's errors to look at: there may be one for every item of a long list."""

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
    """The body of an error response or of a stream's last event; it is also noted for the request log."""
    current().failed(code, message)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    param = None if param is None else _cut(param, MOST_PARAM)
    return {"error": {"message": _cut(message, MOST_MESSAGE), "type": kind, "param": param, "code": code}}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} …"


def of_error(error: ForedraftError) -> dict[str, Any]:
    """The body for a ForedraftError."""
    param = error.setting if isinstance(error, ConfigError) else None
    body = error_body(str(error), status=error.status, code=error.code, param=param)
    if not (current().admin or isinstance(error, RequestError)):  # the log has it whole
        body["error"]["message"] = names_of_paths(body["error"]["message"])
    if isinstance(error, ConfigError) and error.others:
        body["error"]["errors"] = [
            {"message": _cut(str(each), MOST_MESSAGE), "param": each.setting}
            for each in (error, *error.others)
        ]
    return body


def unexpected(error: BaseException) -> dict[str, Any]:
    """The body for an unexpected error; the log has the details under the same number."""
    number = secrets.token_hex(4)
    logger.error("Unexpected error %s", number, exc_info=error)
    return error_body(f"Internal error {number}. See the server's log.", status=500, code="internal")


def respond(
    path: str, body: dict[str, Any], status: int, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """The error response in the form of the API at this path. `body` is in OpenAI's form."""
    if is_anthropic(path):
        body = anthropic_error(body, status)
    return JSONResponse(body, status, headers)


def error_response(error: ForedraftError, path: str) -> JSONResponse:
    """The response for a ForedraftError, with the headers it needs."""
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
    """Make the app answer errors with `respond`; unexpected ones are left to the gate."""

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
        # The framework raises the same error for anything that went wrong while it read the body.
        if isinstance(error.__cause__, RequestValidationError):
            return await invalid(request, error.__cause__)
        if isinstance(error.__cause__, ForedraftError):
            return await ours(request, error.__cause__)
        return _of_http(request, error)

    @app.exception_handler(UnicodeEncodeError)
    async def surrogate(request: Request, error: UnicodeEncodeError) -> JSONResponse:  # noqa: ARG001
        """JSON can contain a lone surrogate as an escape. Only a request body can bring one in here."""
        body = error_body(f"The body {HALF}", status=400, code="invalid_request")
        return respond(request.url.path, body, 400)

    @app.exception_handler(ClientGoneError)
    async def gone(request: Request, error: ClientGoneError) -> Response:  # noqa: ARG001
        return Response(status_code=CLIENT_CLOSED)  # the client is gone


def _of_http(request: Request, error: HTTPException) -> JSONResponse:
    """The response for an error of the framework."""
    message, code, param = str(error.detail), message_code(error.status_code), None
    if error.status_code == 400 and error.__cause__ is not None:  # reading the body failed
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
    """Why a body is not valid JSON, where Python's parser does not explain it."""
    if isinstance(error, UnicodeDecodeError):
        return f"is not valid JSON: it is not {error.encoding.upper()} text"
    if isinstance(error, RepeatedKeyError):
        return f"has the key {_cut(error.key, MOST_PARAM)!r} twice in one object"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, ValueError):
        return "contains a number with too many digits"
    return "could not be read"


def _meant(request: Request) -> str:
    """The path that a client with a wrong base URL probably meant."""
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
    """(message, parameter) of pydantic's errors about a body: of the first, or of the alternative whose path
    goes deepest into the body.
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
    """The path of an error in the body, including a missing key."""
    loc = error["loc"][1:]  # the first is "body"
    return _place(loc, body) + ([str(part) for part in loc[-1:]] if error["type"] == "missing" else [])


def _place(loc: Sequence[Any], body: Any) -> list[str]:
    """The path in the body that pydantic's `loc` describes: the longest possible one. `loc` also contains
    names of a union's alternatives, which may equal names of fields.
    """
    if not loc:
        return []
    without = _place(loc[1:], body)
    known = body if isinstance(body, Mapping) else range(len(body)) if isinstance(body, list) else ()
    if loc[0] not in known:
        return without
    way = [str(loc[0]), *_place(loc[1:], body[loc[0]])]
    return way if len(way) > len(without) else without
