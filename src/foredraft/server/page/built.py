"""GET / and its files: the page as Vite built it from `page/` into the folder `app`.

The files are the same for all clients and contain no data: the page queries the API with the key that the
reader types in. So they need no key.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response

from foredraft.server.page.policy import headers_of

POLICY = {
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data: blob:",
    # The page creates elements one by one; text that became markup would be an error.
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}

KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
"""By file name extension; the system's own table differs between systems."""


@dataclass(frozen=True, slots=True)
class BuiltFile:
    """A file of the page, plain and compressed."""

    plain: bytes
    packed: bytes
    kind: str
    etag: str


def _read() -> Mapping[str, BuiltFile]:
    folder = files("foredraft.server.page").joinpath("app")
    found = {"/": folder.joinpath("index.html")}
    found |= {f"/page/{file.name}": file for file in folder.joinpath("page").iterdir()}
    made: dict[str, BuiltFile] = {}
    for path, file in found.items():
        plain = file.read_bytes()
        kind = KINDS[file.name.rpartition(".")[2]]
        etag = f'"{sha256(plain).hexdigest()[:32]}"'
        made[path] = BuiltFile(plain, gzip.compress(plain, mtime=0), kind, etag)
    return made


FILES = _read()
"""By their paths, which need no key."""


def page_router() -> APIRouter:
    """The routes."""
    router = APIRouter(include_in_schema=False)

    def serve(path: str, file: BuiltFile) -> None:
        # Asked for anew each time, and sent only if it changed: the names stay the same in all versions.
        headers = {**headers_of(POLICY), "Cache-Control": "no-cache", "ETag": file.etag}
        headers["Vary"] = "Accept-Encoding"

        @router.get(path)
        async def built(request: Request) -> Response:
            if file.etag in request.headers.get("if-none-match", ""):
                return Response(status_code=304, headers=headers)
            if "gzip" in request.headers.get("accept-encoding", ""):
                packed = {**headers, "Content-Encoding": "gzip"}
                return Response(file.packed, media_type=file.kind, headers=packed)
            return Response(file.plain, media_type=file.kind, headers=headers)

    for path, file in FILES.items():
        serve(path, file)
    return router
