"""GET /docs: the OpenAPI document as a page, rendered by Swagger UI, whose files are part of the package.

FastAPI's own page loads them from a CDN: it is blank without internet access, and otherwise reveals every
visit to a third party. scripts/swagger_ui.py adds the files, which are under the Apache License 2.0, too.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request
from fastapi.responses import Response

from foredraft.server.page.policy import headers_of, sha256_of

SWAGGER_UI = "5.35.0"
"""The version of the files. It is part of their addresses, under which browsers cache them."""

ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
A_YEAR = 365 * 24 * 3600


def docs_router() -> APIRouter:
    """The routes."""
    router = APIRouter(include_in_schema=False)
    html, headers = docs_page()

    @router.get("/docs")
    async def docs() -> Response:
        return Response(html, media_type="text/html; charset=utf-8", headers=headers)

    def serve(name: str, kind: str) -> None:
        packed = _folder().joinpath(f"{name}.gz").read_bytes()

        @router.get(f"/docs/{name}")
        def asset(request: Request) -> Response:  # on a thread: unpacking takes 10 ms
            kept = {"Cache-Control": f"max-age={A_YEAR}, immutable", "Vary": "Accept-Encoding"}
            if "gzip" in request.headers.get("accept-encoding", ""):
                return Response(packed, media_type=kind, headers={**kept, "Content-Encoding": "gzip"})
            return Response(gzip.decompress(packed), media_type=kind, headers=kept)

    for name, kind in ASSETS.items():
        serve(name, kind)
    return router


def docs_page() -> tuple[str, Mapping[str, str]]:
    """(the page, its headers). The browser contacts this server only."""
    script = _folder().joinpath("docs.js").read_text(encoding="utf-8")
    html = _folder().joinpath("docs.html").read_text(encoding="utf-8")
    policy = {
        "script-src": f"'self' {sha256_of(script)}",
        "style-src": "'self'",
        "img-src": "'self' data:",
    }
    return html.replace("VERSION", SWAGGER_UI).replace("/* script */", script), headers_of(policy)


def _folder() -> Traversable:
    return files("foredraft.server.page")
