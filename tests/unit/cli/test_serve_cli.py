"""`foredraft serve` before it serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.cache_folder import FORMER_NAME
from foredraft.cli import run_command


def test_a_settings_file_of_the_former_name_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may say which keys are asked for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{FORMER_NAME}.toml").write_text("")
    assert run_command(["serve"]) == 2
    assert "Rename the file: mv foretoken.toml foredraft.toml" in capsys.readouterr().err
