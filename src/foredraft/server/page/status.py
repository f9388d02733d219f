"""GET /: a page that shows the server's current state.

The page contains no data and is the same for everyone: its script queries the public endpoints with the key
that the reader types in. So it needs no key, and shows only what that key may see.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

from foredraft.server.page.policy import headers_of, sha256_of

SCRIPTS = ("elements.js", "cost.js", "rounds.js", "model.js", "status.js")
"""Scripts in the order of their dependencies."""


def page_router() -> APIRouter:
    """The route."""
    router = APIRouter()
    html, headers = status_page()

    @router.get("/", include_in_schema=False)
    async def status() -> Response:
        return Response(html, media_type="text/html; charset=utf-8", headers=headers)

    return router


def status_page() -> tuple[str, Mapping[str, str]]:
    """(the page, its headers). The browser only runs and fetches what they allow."""
    style, script = _read("status.css"), "\n".join(map(_read, SCRIPTS))
    html = _read("status.html").replace("/* style */", style).replace("/* script */", script)
    policy = {
        "script-src": sha256_of(script),
        "style-src": sha256_of(style),
        "img-src": "data:",
        # The script creates elements one by one; text that became markup would be an error.
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return html, headers_of(policy)


def _read(name: str) -> str:
    return files("foredraft.server.page").joinpath(name).read_text(encoding="utf-8")
