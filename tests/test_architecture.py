"""The shape of the source: sizes, docstrings, and what stays in the command line. It imports nothing.

Each test lists every offender. The order of the layers is checked by import-linter (`make lint`); see
CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "foredraft"
GENERATED = "backends/llamacpp/abi.py"
"""Written by scripts/bind_llama_cpp.py: as long as what is bound, with names that llama.cpp documents."""

FILE_LINES = 600
FUNCTION_LINES = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def texts() -> dict[str, str]:
    """Every file of the source, by its path below the package."""
    files = sorted(SOURCE.rglob("*.py"))
    return {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in files}


@cache
def modules() -> dict[str, ast.Module]:
    return {name: ast.parse(text) for name, text in texts().items()}


def below_the_command_line(name: str) -> bool:
    """All but the command line, what hands the environment on to child processes, and what compiles at
    installation.
    """
    return not name.startswith("cli/") and name not in (
        "isolation/pool.py",
        "backends/llamacpp/native/build.py",
    )


def test_the_source_is_found() -> None:
    assert {"types.py", "protocols.py", "errors.py", "config.py", "isolation/pool.py"} <= set(texts())


def test_files_are_short() -> None:
    lines = {name: len(text.splitlines()) for name, text in texts().items() if name != GENERATED}
    long = {name: count for name, count in lines.items() if count > FILE_LINES}
    assert not long, f"over {FILE_LINES} lines: a file this long usually holds two ideas"


def test_functions_are_short() -> None:
    long = {
        f"{name}: {node.name}": node.end_lineno - node.lineno + 1
        for name, module in modules().items()
        for node in ast.walk(module)
        if isinstance(node, Function) and node.end_lineno is not None
        if node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    }
    assert not long, f"functions over {FUNCTION_LINES} lines"


def test_modules_have_docstrings() -> None:
    bare = [name for name, module in modules().items() if module.body and not ast.get_docstring(module)]
    assert not bare, "a module says what it is about"


def test_what_modules_export_has_docstrings() -> None:
    bare = [
        f"{name}: {node.name}"
        for name, module in modules().items()
        if name != GENERATED
        for node in module.body
        if isinstance(node, Function | ast.ClassDef)
        if not node.name.startswith("_") and ast.get_docstring(node) is None
    ]
    assert not bare, "public names without a docstring"


def names_used(module: ast.Module) -> Iterator[str]:
    """Calls of plain names as `name()`, attributes as `module.attribute`, and imported names likewise."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield f"{node.func.id}()"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_only_the_command_line_prints_and_reads_the_environment() -> None:
    forbidden = {"print()", "input()", "os.environ", "os.getenv", "os.putenv"}
    used = {
        name: found
        for name, module in modules().items()
        if below_the_command_line(name) and (found := forbidden.intersection(names_used(module)))
    }
    assert not used
