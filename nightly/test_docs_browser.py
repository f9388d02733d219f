"""The page at /docs in a browser that reaches nothing but the server."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from http_server import serving


def test_the_api_is_shown_without_internet() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium: the page is not looked at")
    with serving() as running:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--enable-logging=stderr"]
        done = subprocess.run(
            [*command, "--dump-dom", f"{running.url}/docs"],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
    for path in ("/v1/chat/completions", "/v1/messages", "/tokenize"):
        assert f'data-path="{path}"' in done.stdout
    assert "Content Security Policy" not in done.stderr
    assert "ERR_NAME_NOT_RESOLVED" not in done.stderr
