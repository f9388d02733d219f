"""The server goes on when a host of one of its models is lost."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gguf_factory import tiny_llama
from rpc_process import end_children, needs_library, rpc_server
from served_process import served

SETTINGS = """\
default_model = "split"

[models.split]
path = "tiny.gguf"
threads = 1
context_length = 256
gpu_layers = 1
rpc = ["{host}"]

[models.other]
path = "tiny.gguf"
threads = 1
context_length = 256
rpc = ["{host}"]

[models.whole]
path = "tiny.gguf"
threads = 1
context_length = 256
"""


@needs_library
def test_a_lost_host_ends_requests_and_not_the_server(tmp_path: Path) -> None:
    """The next request loads the model again, while another one still has the connection that was lost."""
    tiny_llama(tmp_path / "tiny.gguf")
    settings = tmp_path / "foredraft.toml"
    with rpc_server(tmp_path) as (host, process):
        settings.write_text(SETTINGS.format(host=host), encoding="utf-8")
        with served(settings, tmp_path) as (url, server):

            def ask(model: str, **more: object) -> httpx.Response:
                body = {"model": model, "prompt": "the cat sat", "max_tokens": 20, "temperature": 0}
                return httpx.post(f"{url}/v1/completions", json={**body, **more}, timeout=60)

            expected = ask("whole").json()["choices"]
            assert ask("split").json()["choices"] == expected
            assert ask("other").json()["choices"] == expected
            for _ in range(2):
                end_children(process)
                lost = ask("split")
                assert lost.status_code == 500
                assert f"The RPC host {host} was lost" in lost.json()["error"]["message"]
                assert ask("split").json()["choices"] == expected
                assert "was lost" in ask("other", stream=True).json()["error"]["message"]
                assert ask("other").json()["choices"] == expected
                assert ask("whole").json()["choices"] == expected
            assert server.poll() is None


@pytest.mark.parametrize("hosts", ['"a:1"', '["a b"]', "[1]", '["a:1", "a:1"]'])
def test_hosts_in_the_settings_are_checked(tmp_path: Path, hosts: str) -> None:
    from foredraft.errors import ConfigError
    from foredraft.server.settings_file import read_settings

    file = tmp_path / "foredraft.toml"
    file.write_text(f'[models.m]\npath = "m.gguf"\nrpc = {hosts}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rpc|RPC"):
        read_settings(file)
