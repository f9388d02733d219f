"""Options of other commands and other tools: what an error tells to do instead."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from command_line import Command
from foredraft.cli.serve import SAMPLED
from foredraft.errors import ConfigError
from foredraft.server.settings import SamplingDefaults
from foredraft.server.settings_file import parse_settings
from gguf_factory import tiny_llama


def test_an_option_of_another_command(foredraft: Command) -> None:
    ran = foredraft("chat", "--image", "cat.png")
    assert ran.code == 2
    assert "type /image FILE" in ran.err
    ran = foredraft("serve", "--reasoning-budget", 5)
    assert ran.code == 2
    assert "reasoning_budget in [models.NAME.sampling]" in ran.err
    assert "No such option '--nonesuch'" in foredraft("serve", "--nonesuch").err


def test_every_default_of_the_settings_file_is_named() -> None:
    assert set(SAMPLED) == {field.name for field in fields(SamplingDefaults)}


def test_no_limit_of_thought(foredraft: Command, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny.gguf")
    words = ("run", "-m", model, "-t", 1, "-n", 2, "--temp", 0, "Hi", "--reasoning-budget")
    assert foredraft(*words, -1).code == 0
    for wrong in (-2, "x"):
        ran = foredraft(*words, wrong)
        assert ran.code == 2
        assert "at least 0, or -1 for no limit" in ran.err


@pytest.mark.parametrize(
    ("key", "meant"), [("ctx", "context_length"), ("lora", "adapters"), ("rope", "rope_scaling")]
)
def test_names_of_settings_elsewhere(key: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(f'[models.m]\npath = "m.gguf"\n{key} = 1', Path("foredraft.toml"))
    assert f"Did you mean '{meant}'?" in str(caught.value.hint)
