"""What a browser may do with one of our pages: run what came with it, ask this server, and nothing else."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256


def headers_of(policy: Mapping[str, str]) -> Mapping[str, str]:
    """The headers of a page that may beside asking this server do what `policy` says."""
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
    """How a policy names a script or a style that stands in the page."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
