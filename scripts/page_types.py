"""Write page/src/api/bodies.json, the bodies of the console API, from which `npm run types` makes TypeScript.

python scripts/page_types.py && cd page && npm run -s types > src/api/schema.d.ts
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from foredraft.server import console
from foredraft.server.console.shapes import Change, Reply

FILE = Path(__file__).parent.parent / "page/src/api/bodies.json"


def document() -> dict[str, Any]:
    """An OpenAPI document without paths: the schema of every body that the console answers or is sent."""
    for module in pkgutil.iter_modules(console.__path__, f"{console.__name__}."):
        importlib.import_module(module.name)
    asked = [(kind, "serialization") for kind in _below(Reply)] + [
        (kind, "validation") for kind in _below(Change)
    ]
    _, found = models_json_schema(asked, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Foredraft", "version": "1"},
        "paths": {},
        "components": {"schemas": found["$defs"]},
    }


def _below(kind: type[Any]) -> list[type[Any]]:
    """All subclasses in the package, by name."""
    found = {one for one in kind.__subclasses__() if one.__module__.startswith("foredraft.")}
    for one in list(found):
        found |= set(_below(one))
    return sorted(found, key=lambda one: str(one.__name__))


def text() -> str:
    """The file's text."""
    return json.dumps(document(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
