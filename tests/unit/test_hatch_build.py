"""The build hook: what goes into a wheel, and what it is called, with a compiler and without."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

ROOT = Path(__file__).parents[2]
T = TypeVar("T")


class Interface(Generic[T]):
    """hatchling's class, as far as the hook uses it: hatchling is not installed where nothing is built."""

    def __init__(self, root: Path, target: str) -> None:
        self.root, self.target_name = str(root), target
        self.warnings: list[str] = []
        self.app = SimpleNamespace(display_warning=self.warnings.append)


Hook = Callable[[str, str], tuple[dict[str, Any], list[str]]]


class BuildError(Exception):
    """`build.BuildError`."""


@pytest.fixture
def build() -> SimpleNamespace:
    """A stand-in for `native/build.py` that writes nothing."""
    folder = Path("/checkout/native/lib")
    asked: list[bool] = []

    def compiled(*, everything: bool) -> list[Path]:
        asked.append(everything)
        return [folder / "libforedraft-avx2.so"]

    return SimpleNamespace(build=compiled, BuildError=BuildError, FOLDER=folder, asked=asked)


@pytest.fixture
def hook(build: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Hook:
    """Runs the hook for a target and a version of it; returns what it tells hatchling, and its warnings."""
    name = "hatchling.builders.hooks.plugin.interface"
    stand_in = ModuleType(name)
    stand_in.BuildHookInterface = Interface  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.delenv("CIBUILDWHEEL", raising=False)
    monkeypatch.setattr("sysconfig.get_platform", lambda: "linux-x86_64")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "module_at", lambda path: build)

    def run(target: str, version: str) -> tuple[dict[str, Any], list[str]]:
        one = module.KernelsHook(ROOT, target)
        data: dict[str, Any] = {"pure_python": True, "force_include": {}}
        one.initialize(version, data)
        return data, one.warnings

    return run


def test_a_wheel_has_them_and_is_for_this_platform(hook: Hook) -> None:
    data, warnings = hook("wheel", "standard")
    inside = "foredraft/backends/llamacpp/native/lib/libforedraft-avx2.so"
    assert data["force_include"] == {"/checkout/native/lib/libforedraft-avx2.so": inside}
    assert (data["tag"], data["pure_python"], warnings) == ("py3-none-linux_x86_64", False, [])


def test_an_editable_installation_finds_them_beside_the_sources(hook: Hook) -> None:
    data, _ = hook("wheel", "editable")
    assert not data["force_include"]


def test_a_source_distribution_compiles_nothing(hook: Hook, build: SimpleNamespace) -> None:
    data, _ = hook("sdist", "standard")
    assert data == {"pure_python": True, "force_include": {}}
    assert not build.asked


def failing(*, everything: bool) -> list[Path]:
    raise BuildError("there is no C++ compiler")


def test_without_a_compiler_the_wheel_is_for_every_platform(hook: Hook, build: SimpleNamespace) -> None:
    build.build = failing
    data, warnings = hook("wheel", "standard")
    assert data == {"pure_python": True, "force_include": {}}
    assert warnings == ["Foredraft's kernels for llama.cpp are left out: there is no C++ compiler."]


def test_a_release_has_every_level_or_fails(
    hook: Hook, build: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIBUILDWHEEL", "1")
    hook("wheel", "standard")
    assert build.asked == [True]
    build.build = failing
    with pytest.raises(BuildError):
        hook("wheel", "standard")


def test_the_real_build_script_can_be_read_before_anything_is_installed() -> None:
    """Only the standard library: the hook runs where nothing else is."""
    text = (ROOT / "src/foredraft/backends/llamacpp/native/build.py").read_text(encoding="utf-8")
    imported = {
        line.split()[1].partition(".")[0]
        for line in text.splitlines()
        if line.startswith(("import ", "from "))
    }
    assert imported <= {*sys.stdlib_module_names, "__future__"}
