"""The server's page in a headless Chromium, for the scripts that measure what it costs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("page_browser.mjs")
INSTALLED = SCRIPT.parent.parent / "page" / "node_modules"
CLOSE_SECONDS = 30.0


class Browser:
    """Shows one page of a server at a time. `process` runs page_browser.mjs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def show(self, address: str | None) -> None:
        """Go to an address of the page and wait for its heading; None closes the page. Ends the script with
        what went wrong, also with what the page itself threw since it was last asked.
        """
        errors = self._ask({"show": address}).get("errors")
        if errors:
            raise SystemExit(f"The page has errors: {errors}")

    def views(self, asked: Sequence[str] = ()) -> list[str]:
        """The views that were asked for; without any, all in the menu of the page that is open. Ends the
        script if the menu lacks one.
        """
        known = list(self._ask({"views": True})["views"])
        if unknown := sorted(set(asked) - set(known)):
            raise SystemExit(f"The page has no view {unknown[0]!r}. Views: {', '.join(known)}.")
        return list(asked) or known

    def memory(self) -> dict[str, int]:
        """`heap_bytes` of JavaScript, DOM `nodes` and `listeners` of the open page, without garbage."""
        return {name: int(value) for name, value in self._ask({"memory": True}).items()}

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line or '{"failed": "the browser has ended"}')
        if "failed" in answer:
            raise SystemExit(f"The browser could not do {command}: {answer['failed']}")
        return answer


@contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium without a page. Ends the script where Node.js or Playwright are missing."""
    node = shutil.which("node")
    if node is None or not INSTALLED.exists():
        raise SystemExit("This needs Node.js, Chromium and Playwright: run `npm ci` in page/.")
    process = subprocess.Popen(
        [node, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        yield Browser(process)
    finally:
        process.communicate()  # it ends with its input
        process.wait(CLOSE_SECONDS)
