"""Completion in shells: what is offered, how fast it starts, and the scripts of `foredraft completion`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Command
from foredraft import registry
from foredraft.cli import COMMANDS, COMPLETE_VARIABLE

SHELLS = ("bash", "zsh", "fish")
COMPLETE = """
import sys
from foredraft.cli import main
sys.argv = ["foredraft"]
try:
    main()
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""

Offer = Callable[..., list[str]]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache folder with a repository pulled in two quantisations, which no backend has to read."""
    folder = tmp_path / "models" / "Own" / "Coder-GGUF"
    folder.mkdir(parents=True)
    for quantization in ("Q4_0", "Q8_0"):
        (folder / f"coder-{quantization}.gguf").touch()
    (folder.parent.parent / "with a space.gguf").touch()
    return tmp_path


def ask(cache: Path, shell: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        **variables,
        COMPLETE_VARIABLE: f"{shell}_complete",
        "FOREDRAFT_CACHE": str(cache),
        "HOME": str(cache),
    }
    command = [sys.executable, "-c", COMPLETE]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True)


@pytest.fixture
def offered(cache: Path) -> Offer:
    """What a shell is told for a line up to the cursor: the values, without files."""

    def offer(line: str, shell: str = "bash") -> list[str]:
        if shell == "bash":
            said = ask(cache, shell, COMP_LINE=line).stdout.splitlines()
            return [text.removeprefix("plain,") for text in said if text.startswith("plain,")]
        words = line.split(" ")
        said = ask(cache, shell, COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)).stdout.splitlines()
        return [value for kind, value in zip(said[::3], said[1::3], strict=True) if kind == "plain"]

    return offer


def test_commands(offered: Offer) -> None:
    assert offered("foredraft ") == [*COMMANDS]
    assert offered("foredraft mod") == ["models"]
    assert offered("foredraft models qu") == ["quantize"]


@pytest.mark.parametrize(
    "before", ["run -m", "run", "serve", "doctor", "models rm", "chat --model", "run -md"]
)
def test_models(offered: Offer, before: str) -> None:
    assert offered(f"foredraft {before} own/") == ["Own/Coder-GGUF:Q4_0", "Own/Coder-GGUF:Q8_0"]


def test_a_model_may_be_begun_with_any_of_its_names(offered: Offer) -> None:
    assert offered("foredraft run -m coder-q8") == ["coder-Q8_0"]
    assert offered("foredraft run -m with") == [], "bash would take it for three words"


def test_bash_gets_what_follows_the_colon(offered: Offer) -> None:
    assert offered("foredraft run -m Own/Coder-GGUF:Q8") == ["Q8_0"]
    assert offered("foredraft run --model=Own/Coder-GGUF:Q8") == ["Q8_0"]
    assert offered("foredraft run --model=Own/") == ["Own/Coder-GGUF:Q4_0", "Own/Coder-GGUF:Q8_0"]


def test_another_shell_gets_the_whole_word(offered: Offer) -> None:
    assert offered("foredraft run -m Own/Coder-GGUF:Q8", "zsh") == ["Own/Coder-GGUF:Q8_0"]
    assert offered("foredraft run --model=Own/Coder-GGUF:Q8", "zsh") == ["--model=Own/Coder-GGUF:Q8_0"]


def test_files_are_left_to_the_shell(cache: Path) -> None:
    for line in ("foredraft run -m ./mo", "foredraft run -f no", "foredraft serve --config fore"):
        assert ask(cache, "bash", COMP_LINE=line).stdout.startswith("file,")


def test_drafters(offered: Offer) -> None:
    assert offered("foredraft run --speculate ") == ["auto", "off", *registry.drafter_names()]
    assert offered("foredraft run --speculate 'suffix;rec") == ["suffix;recycle"]
    assert offered("foredraft run --speculate su") == ["suffix"]


def test_values_of_options(offered: Offer) -> None:
    assert offered("foredraft serve --log-format ") == ["text", "json", "off"]
    assert "--no-remember" in offered("foredraft run --no-")


@pytest.mark.parametrize("line", ["foredraft ", "foredraft run -m ", "foredraft serve --speculate "])
def test_it_starts_without_an_engine(cache: Path, line: str) -> None:
    loaded = set(ask(cache, "bash", COMP_LINE=line).stderr.split())
    assert "foredraft.cli.completion" in loaded
    assert not loaded & {
        "jinja2",
        "xllamacpp",
        "torch",
        "uvicorn",
        "foredraft.engine.engine",
        "foredraft.bench",
    }


def test_a_cache_folder_that_is_none_is_no_reason_to_say_anything(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert ask(tmp_path / "file", "bash", COMP_LINE="foredraft run -m ").stdout == "file,\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_scripts_end_with_how_to_install_them(foredraft: Command, shell: str, tmp_path: Path) -> None:
    ran = foredraft("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert COMPLETE_VARIABLE in ran.out
    assert "# For new shells" in ran.out
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(ran.out)
        checked = subprocess.run([shell, "-n", script], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_an_unknown_shell(foredraft: Command) -> None:
    ran = foredraft("completion", "tcsh")
    assert ran.code == 2
    assert "bash" in ran.err


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_runs_the_script(foredraft: Command, cache: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "foredraft"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom foredraft.cli import main\nmain()\n")
    program.chmod(0o755)
    line = "foredraft run -m Own/Coder-GGUF:"
    script = foredraft("completion", "bash").out + (
        f"COMP_LINE={line!r} COMP_POINT={len(line)}\n"
        "compopt() { :; }  # only where a key is pressed\n"
        '_foredraft_completion foredraft; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    environment = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "FOREDRAFT_CACHE": str(cache),
        "HOME": str(cache),
    }
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert ran.stdout.split() == ["Q4_0", "Q8_0"]
