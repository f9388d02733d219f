"""A model that is not there is an error in words, in every benchmark that takes one."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[3] / "benchmarks").glob("*.py"))
TAKE_ONE = [
    script
    for script in SCRIPTS
    if script.name != "common.py"
    and ("parser(__doc__)" in script.read_text("utf-8") or "type=model_path" in script.read_text("utf-8"))
]


def test_the_benchmarks_are_found() -> None:
    assert {"lossless.py", "slow_start.py", "server_peers.py", "torch_peers.py"} <= {s.name for s in TAKE_ONE}


@pytest.mark.parametrize("script", TAKE_ONE, ids=lambda script: script.stem)
def test_a_model_that_is_not_there(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [script.name, "--model", "nothing-there.gguf"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("Error: There is no file nothing-there.gguf.")


@pytest.mark.parametrize(
    "script", [s for s in SCRIPTS if "__main__" in s.read_text("utf-8")], ids=lambda s: s.stem
)
def test_every_benchmark_says_errors_in_words(script: Path) -> None:
    """Those that are started by others, with an address, have nobody to say them to."""
    if script.stem not in ("server_peer_process", "server_prober"):
        assert "run_benchmark(main)" in script.read_text("utf-8")
