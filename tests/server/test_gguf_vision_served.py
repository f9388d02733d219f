"""A GGUF that sees, over HTTP: its mmproj file named in the settings, images of several clients at once."""

from __future__ import annotations

import base64
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from foredraft.library.mmproj import find_mmproj
from gguf_vision import qwen2vl
from served_process import served

SETTINGS = """\
[models.tiny]
path = "m/tiny-qwen2vl.gguf"
mmproj = "eyes/mmproj.gguf"
threads = 1

[models.blind]
path = "m/tiny-qwen2vl.gguf"
mmproj = "none"
threads = 1
"""


def address_of(seed: int) -> str:
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(np.kron(blocks, np.ones((40, 40, 1), np.uint8))).save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def ask(url: str, seed: int, model: str = "tiny") -> httpx.Response:
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": address_of(seed)}},
        {"type": "text", "text": "What is it?"},
    ]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 24,
        "temperature": 0,
    }
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def said(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def test_images_of_several_clients(tmp_path: Path) -> None:
    """Encoded in other threads than the model's, while it computes."""
    mmproj = find_mmproj(qwen2vl(tmp_path / "m"))
    assert mmproj is not None
    (tmp_path / "eyes").mkdir()
    mmproj.rename(tmp_path / "eyes" / "mmproj.gguf")
    settings = tmp_path / "foredraft.toml"
    settings.write_text(SETTINGS)
    with served(settings, tmp_path / "cache") as (url, _):
        alone = [said(ask(url, seed)) for seed in range(4)]
        assert len(set(alone)) == 4
        with ThreadPoolExecutor(6) as clients:
            together = list(clients.map(lambda seed: said(ask(url, seed % 4)), range(4, 24)))
            others = list(clients.map(lambda seed: said(ask(url, seed)), range(30, 40)))
        assert together == [alone[seed % 4] for seed in range(4, 24)]
        assert others == [said(ask(url, seed)) for seed in range(30, 40)]
        refused = ask(url, 1, "blind")
        assert refused.status_code == 400
        assert "does not see" in refused.json()["error"]["message"]
