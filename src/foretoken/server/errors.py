"""Errors as OpenAI's API gives them: {"error": {"message", "type", "param", "code"}}.

Nothing of the inside goes out: no path, no stack trace. What is not one of our errors is logged with a
number, and the answer names that number only.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from foretoken.errors import ForetokenError

logger = logging.getLogger(__name__)

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
    """The body of an error answer."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def of_error(error: ForetokenError) -> dict[str, Any]:
    """The body for one of our errors."""
    return error_body(str(error), status=error.status, code=error.code)


def unexpected(error: BaseException) -> dict[str, Any]:
    """The body for an error that nobody expected; the log has the rest under the same number."""
    number = secrets.token_hex(4)
    logger.error("Unexpected error %s", number, exc_info=error)
    return error_body(f"Internal error {number}. The server's log says more.", status=500, code="internal")


def install(app: FastAPI) -> None:
    """Have the app answer every error in this form."""

    @app.exception_handler(ForetokenError)
    async def ours(request: Request, error: ForetokenError) -> JSONResponse:  # noqa: ARG001
        headers = {}
        if error.status in (429, 503):
            headers["Retry-After"] = str(max(1, round(getattr(error, "retry_after", 1.0))))
        return JSONResponse(of_error(error), error.status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:  # noqa: ARG001
        message, param = describe(error.errors())
        return JSONResponse(error_body(message, status=400, code="invalid_request", param=param), 400)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        message = str(error.detail)
        if error.status_code == 404:
            message = f"There is no {request.method} {request.url.path} here."
        elif error.status_code == 405:
            message = f"{request.method} is not allowed for {request.url.path}."
        body = error_body(message, status=error.status_code, code=message_code(error.status_code))
        return JSONResponse(body, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def others(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001
        return JSONResponse(unexpected(error), 500)


def message_code(status: int) -> str:
    """The code of an error that only has an HTTP status."""
    return {404: "not_found", 405: "method_not_allowed"}.get(status, "http_error")


def describe(errors: Sequence[Any]) -> tuple[str, str | None]:
    """(what is wrong, which parameter) of pydantic's first complaint."""
    first = errors[0]
    place = [str(part) for part in first.get("loc", ()) if part != "body"]
    param = ".".join(place) or None
    kind, text = first.get("type", ""), str(first.get("msg", "is not valid"))
    if kind == "extra_forbidden":
        return f"Unknown parameter: {param!r}. It is not supported and was not ignored.", param
    if kind == "missing":
        return f"Missing required parameter: {param!r}.", param
    if kind == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return f"The body is not valid JSON: {reason}.", None
    text = text.removeprefix("Value error, ")
    return (f"{param}: {text}." if param else f"{text}.").replace("..", "."), param
