"""`scripts/compile_parts.py`: what it leaves behind, whether or not it can compile."""

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

from foredraft.compiled import LIST, PARTS, State, state

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "compile_parts.py"
LIBRARY = f"rules{EXTENSION_SUFFIXES[0]}"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The script's names, for two parts of two modules each, of which the first was compiled before. In the
    second one module says its types.
    """
    names: dict[str, Any] = runpy.run_path(str(SCRIPT))["main"].__globals__
    for name in ("planner", "lookup"):
        folder = tmp_path / "src" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "rules.py").write_text("FROM = 'source'\n")
        (folder / "words.py").write_text("")
    (tmp_path / "src" / "lookup" / "rules.pxd").write_text("")
    (tmp_path / "src" / "planner" / LIBRARY).write_bytes(b"an old library")
    (tmp_path / "src" / "planner" / LIST).write_text("{}")
    parts = [
        names["Part"](name, tmp_path / "src" / name, "", typed=name == "lookup")
        for name in ("planner", "lookup")
    ]
    monkeypatch.setitem(names, "SOURCE", tmp_path / "src")
    monkeypatch.setitem(names, "PARTS", parts)
    return names


def test_what_was_compiled_is_listed(script: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def build(part: Any, sources: list[str]) -> CompletedProcess[str]:
        asked.append(sources)
        assert not (part.folder / LIST).exists(), "while it compiles nothing counts as compiled"
        (part.folder / LIBRARY).write_bytes(b"a new library")
        return CompletedProcess([], 0, "", None)

    monkeypatch.setitem(script, "build", build)
    assert script["main"]() == 0
    planner, lookup = (part.folder for part in script["PARTS"])
    assert asked == [
        [str(Path("planner") / "rules.py"), str(Path("planner") / "words.py")],
        [str(Path("lookup") / "rules.py")],
    ]
    assert list(json.loads((planner / LIST).read_text())) == ["rules.py", "words.py"]
    assert list(json.loads((lookup / LIST).read_text())) == ["rules.py", "rules.pxd"]
    assert state(planner) is state(lookup) is State.COMPILED
    (lookup / "rules.pxd").write_text("cdef int more")
    assert state(lookup) is State.STALE, "other types make another library"


def test_where_one_cannot_nothing_old_is_left_of_it(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(part: Any, _: list[str]) -> CompletedProcess[str]:
        (part.folder / LIBRARY).write_bytes(b"half a library")
        return CompletedProcess([], int(part.name == "planner"), "gcc: not found", None)

    monkeypatch.setitem(script, "build", build)
    assert script["main"]() == 1
    planner, lookup = (part.folder for part in script["PARTS"])
    assert sorted(path.name for path in planner.iterdir()) == ["__init__.py", "rules.py", "words.py"]
    assert state(lookup) is State.COMPILED, "the other one is as good as ever"
    said = capsys.readouterr().out
    assert "gcc: not found" in said
    assert "The planner could not be compiled: it runs from source" in said


def test_the_guard_knows_all_parts() -> None:
    assert tuple(part.folder for part in runpy.run_path(str(SCRIPT))["PARTS"]) == PARTS


def test_what_the_planner_imports_is_there_when_it_is_compiled() -> None:
    """pip compiles in an environment that has nothing but what the build asks for."""
    imported = set[str]()
    for source in (ROOT / "src" / "foredraft" / "planner").glob("*.py"):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    there = {re.split(r"[<>=]", requirement)[0] for requirement in asked}
    assert imported - set(sys.stdlib_module_names) - {"foredraft"} <= there
