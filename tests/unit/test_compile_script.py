"""`scripts/compile_planner.py`: what it leaves behind, whether or not it can compile."""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from foretoken.compiled import LIST, State, state

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "compile_planner.py"
LIBRARY = f"rules{EXTENSION_SUFFIXES[0]}"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The script's names, for a planner of one module that was compiled before."""
    names: dict[str, Any] = runpy.run_path(str(SCRIPT))["main"].__globals__
    planner = tmp_path / "src" / "planner"
    planner.mkdir(parents=True)
    (planner / "__init__.py").write_text("")
    (planner / "rules.py").write_text("FROM = 'source'\n")
    (planner / LIBRARY).write_bytes(b"an old library")
    (planner / LIST).write_text("{}")
    monkeypatch.setitem(names, "SOURCE", tmp_path / "src")
    monkeypatch.setitem(names, "PLANNER", planner)
    return names


def test_what_was_compiled_is_listed(script: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def build(sources: list[str]) -> CompletedProcess[str]:
        asked.append(sources)
        assert not (script["PLANNER"] / LIST).exists(), "while it compiles nothing counts as compiled"
        (script["PLANNER"] / LIBRARY).write_bytes(b"a new library")
        return CompletedProcess([], 0, "", None)

    monkeypatch.setitem(script, "build", build)
    assert script["main"]() == 0
    assert asked == [[str(Path("planner") / "rules.py")]]
    assert list(json.loads((script["PLANNER"] / LIST).read_text())) == ["rules.py"]
    assert state(script["PLANNER"]) is State.COMPILED


def test_where_it_cannot_nothing_old_is_left(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(script, "build", lambda _: CompletedProcess([], 1, "gcc: not found", None))
    assert script["main"]() == 1
    assert sorted(path.name for path in script["PLANNER"].iterdir()) == ["__init__.py", "rules.py"]
    said = capsys.readouterr().out
    assert "gcc: not found" in said
    assert "runs from source" in said


def test_what_the_planner_imports_is_there_when_it_is_compiled() -> None:
    """pip compiles in an environment that has nothing but what the build asks for."""
    imported = set[str]()
    for source in (ROOT / "src" / "foretoken" / "planner").glob("*.py"):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    there = {re.split(r"[<>=]", requirement)[0] for requirement in asked}
    assert imported - set(sys.stdlib_module_names) - {"foretoken"} <= there
