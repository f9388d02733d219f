"""A server that is killed in the middle of answers: nothing it keeps on disk is harmed."""

from __future__ import annotations

from pathlib import Path

import httpx

import gguf_factory
from foredraft.server.settings_file import read_settings
from served_process import SETTINGS, answer, kill, served


def test_kill_loses_no_settings_and_corrupts_no_store(tmp_path: Path) -> None:
    gguf_factory.tiny_llama(tmp_path / "tiny.gguf", ctx_train=2048)
    settings, cache = tmp_path / "server.toml", tmp_path / "cache"
    settings.write_text(SETTINGS)
    prompts = [f"the ferry left the island {number} times, the ferry left" for number in range(6)]
    texts: list[str] = []
    for time in range(2):
        with served(settings, cache) as (url, process):
            now = [answer(url, prompt) for prompt in prompts]
            texts = texts or now
            assert now == texts, "what was remembered changed a text"
            body = {"prompt": "the", "max_tokens": 1500, "stream": True, "ignore_eos": True}
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as stream:
                lines = stream.iter_lines()
                for _ in range(1 + 5 * time):
                    next(lines)
                kill(process)
    assert settings.read_text() == SETTINGS
    assert read_settings(settings).default_model == "tiny"
    temporary = [path for path in cache.rglob("*") if path.suffix in (".tmp", ".part")]
    assert len(temporary) <= 2, temporary
