"""Content security policy of our pages: run only their own scripts, and contact only this server."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256


def headers_of(policy: Mapping[str, str]) -> Mapping[str, str]:
    """The headers of a page with the permissions in `policy`, beside contacting this server."""
    whole = {
        "default-src": "'none'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        **policy,
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in whole.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def sha256_of(text: str) -> str:
    """The name of an inline script or style in a policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
