"""The page in a browser: the Playwright tests of `page/tests`, where Node.js and Chromium are there."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from page_tools import PAGE, npm

SPECS = sorted(file.name for file in (PAGE / "tests").glob("*.spec.ts"))
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LIMIT_S = 900


@pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="no Chromium is installed")
@pytest.mark.parametrize("spec", SPECS)
def test_in_a_browser(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    npm("test", "--", f"tests/{spec}", "--output", f"test-results/{spec}", timeout=LIMIT_S)
