"""The documentation is true of the program: commands, options, links, paths, and code blocks."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from foredraft import config, registry
from foredraft.cli import cli
from foredraft.config import Stage
from foredraft.errors import ForedraftError
from foredraft.testing import FakeModel, drafter_context

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LAB = sorted((ROOT / "lab").rglob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS_NO_MODEL = {"my_drafter.py"}

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"\b(?:src|docs|tests|examples|scripts|benchmarks)/[\w./*-]*\w")
_OPERATORS = {"|", ">", "<", "&&", ";", "&"}

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in _FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_test_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


# --- links and paths -----------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, *LAB], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(prose(page)):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert not broken


@pages
def test_files_that_are_named_exist(page: Path) -> None:
    text = re.sub(r"\]\([^)]*\)|\w+://\S+", "", page.read_text(encoding="utf-8"))
    missing = [name for name in _PATH.findall(text) if not any(ROOT.glob(name))]
    # Of other projects: llama.cpp's own documentation.
    assert set(missing) <= {"docs/speculative.md"}


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r": ([\w/-]+\.md)$", navigation, re.MULTILINE))
    assert listed == {
        str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")
    }


# --- the command line ----------------------------------------------------------------------------------


def test_the_command_reference_is_up_to_date() -> None:
    generator = load(ROOT / "scripts" / "cli_reference.py")
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == generator.reference(), "run: python scripts/cli_reference.py"


AFTER_THE_REFERENCE = """
import runpy, sys
runpy.run_path(sys.argv[1])["reference"]()
from foredraft.cli import run_command
sys.exit(max(run_command([*name.split(), "-h"]) for name in ("", "run", "models", "models pull")))
"""


def test_writing_the_reference_leaves_the_commands_as_they_are() -> None:
    """click keeps the first help option that a command got: one without -h stayed for the whole process."""
    script = str(ROOT / "scripts" / "cli_reference.py")
    arguments = [sys.executable, "-c", AFTER_THE_REFERENCE, script]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def commands(script: str) -> Iterator[list[str]]:
    """The arguments of every `foredraft` command in a shell script."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>&;")
        lexer.whitespace_split = True
        words = list(lexer)
        while "foredraft" in words:
            words = words[words.index("foredraft") + 1 :]
            end = next((i for i, word in enumerate(words) if word in _OPERATORS), len(words))
            yield words[:end]


def test_commands_are_found_in_a_script() -> None:
    script = 'git diff | foredraft run -f - "a | b" > out.txt  # then\nforedraft forget; foredraft doctor'
    assert list(commands(script)) == [["run", "-f", "-", "a | b"], ["forget"], ["doctor"]]


def flags_of(arguments: list[str]) -> tuple[click.Command, list[str]]:
    """The command that is meant, and the flags given to it."""
    command: click.Command = cli
    while isinstance(command, click.Group) and arguments:
        name, *arguments = arguments
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"there is no command {name}"
        command = found
    return command, [word.partition("=")[0] for word in arguments if re.match(r"--?[a-z]", word)]


@pages
def test_commands_and_their_flags_exist(page: Path) -> None:
    for arguments in (words for script in blocks(page, "sh") for words in commands(script)):
        command, flags = flags_of(arguments)
        known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        assert set(flags) <= known | {"--help", "--version"}, f"foredraft {' '.join(arguments)}"


@pages
def test_flags_in_the_text_exist(page: Path) -> None:
    """Flags in backticks are of some command here, or said to be another tool's."""
    every = {"--help", "--version"}
    stack: list[click.Command] = [cli]
    while stack:
        command = stack.pop()
        every |= {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        if isinstance(command, click.Group):
            stack += [command.commands[name] for name in command.commands]
            stack += [
                found
                for name in command.list_commands(click.Context(command))
                if (found := command.get_command(click.Context(command), name)) is not None
            ]
    named = re.findall(r"`(--[a-z][\w-]*)", prose(page))
    assert {flag for flag in named if not flag.endswith("-")} <= every | {"--strict"}


def test_speculation_strings_in_the_docs_are_valid() -> None:
    for page in PAGES:
        for script in blocks(page, "sh"):
            for arguments in commands(script):
                if "--speculate" in arguments:
                    text = arguments[arguments.index("--speculate") + 1]
                    registry.check_speculation(config.parse_speculation(text))


# --- drafters ------------------------------------------------------------------------------------------


def documented_options(name: str) -> dict[str, str]:
    """The option table of a drafter's section in docs/drafters.md: option → default as written."""
    text = (ROOT / "docs" / "drafters.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", text, flags=re.MULTILINE)
    body = next(part for part in section if part.startswith(f"{name}\n"))
    return dict(re.findall(r"^\| `([\w-]+)` \| (?:`([^`]*)`)? *\|", body, re.MULTILINE))


@pytest.mark.parametrize("name", registry.drafter_names())
def test_options_of_drafters_are_documented(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[str, Any] = {}

    def spy(drafter: str, options: Mapping[str, str], defaults: Mapping[str, int | float | str]) -> Any:
        read.update(defaults)
        return original(drafter, options, defaults)

    original = config.read_options
    registry.drafter_factory(name)  # imports its module
    for module in [module for key, module in sys.modules.items() if key.startswith("foredraft.drafters.")]:
        if getattr(module, "read_options", None) is original:
            monkeypatch.setattr(module, "read_options", spy)
    try:
        target = FakeModel(features=("next",))
        registry.create_drafter(Stage(name), drafter_context(target)).close()
    except ForedraftError:
        assert name == "draft-model", "only a draft model needs an option"
    assert documented_options(name) == {option: str(default) for option, default in read.items()}


# --- code ----------------------------------------------------------------------------------------------


@pages
def test_python_blocks_compile(page: Path) -> None:
    if page.name == "write-a-drafter.md":
        return  # its blocks are parts of a file: see below
    for code in blocks(page, "python"):
        compile(code, str(page), "exec")


def test_the_drafter_page_is_the_example() -> None:
    example = (ROOT / "examples" / "my_drafter.py").read_text(encoding="utf-8")
    shown = blocks(ROOT / "docs" / "write-a-drafter.md", "python")
    assert len(shown) >= 5
    assert [code for code in shown if code not in example] == []


def test_the_example_drafter_works(capsys: pytest.CaptureFixture[str]) -> None:
    module = load(ROOT / "examples" / "my_drafter.py")
    module.main()
    printed = capsys.readouterr().out
    assert "last-seen" in printed
    with pytest.raises(ForedraftError, match="max=0"):
        module.create(drafter_context(), {"max": "0"})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_compile_and_say_how_to_run_them(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    compile(source, str(path), "exec")
    assert f"python examples/{path.name}" in source


ON_ONE_CORE = """
import os, runpy, sys
if hasattr(os, "sched_setaffinity"):  # several busy-waiting threads crawl where others want the cores too
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.model
@pytest.mark.parametrize(
    "path", [path for path in EXAMPLES if path.name not in NEEDS_NO_MODEL], ids=lambda path: path.name
)
def test_examples_run(
    path: Path, model_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))
    command = [sys.executable, "-c", ON_ONE_CORE, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 100
