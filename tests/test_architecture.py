"""The shape of the source: sizes, docstrings, and what stays in the command line. It imports nothing.

The order of the layers is checked by import-linter (`make lint`); see CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "foredraft"
FILES = sorted(SOURCE.rglob("*.py"))
FILE_LINES = 600
FUNCTION_LINES = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef
everywhere = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def below_the_command_line(path: Path) -> bool:
    """All but the command line, and what hands the environment on to child processes."""
    return "cli" not in path.relative_to(SOURCE).parts and path != SOURCE / "isolation" / "pool.py"


def test_the_source_is_found() -> None:
    assert {"types.py", "protocols.py", "errors.py", "config.py"} <= {path.name for path in FILES}


@everywhere
def test_files_are_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_LINES, f"{lines} lines: a file this long usually holds two ideas"


@everywhere
def test_functions_are_short(path: Path) -> None:
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(parse(path))
        if isinstance(node, Function) and node.end_lineno is not None
        if node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    }
    assert not long, f"functions over {FUNCTION_LINES} lines"


@everywhere
def test_modules_and_what_they_export_have_docstrings(path: Path) -> None:
    module = parse(path)
    assert not module.body or ast.get_docstring(module), "a module says what it is about"
    bare = [
        node.name
        for node in module.body
        if isinstance(node, Function | ast.ClassDef)
        if not node.name.startswith("_") and ast.get_docstring(node) is None
    ]
    assert not bare, "public names without a docstring"


def names_used(path: Path) -> Iterator[str]:
    """Calls of plain names as `name()`, attributes as `module.attribute`, and imported names likewise."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield f"{node.func.id}()"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    "path", [path for path in FILES if below_the_command_line(path)], ids=lambda path: path.name
)
def test_only_the_command_line_prints_and_reads_the_environment(path: Path) -> None:
    forbidden = {"print()", "input()", "os.environ", "os.getenv", "os.putenv"}
    assert not forbidden.intersection(names_used(path))
