"""Hatchling's build hook: compile Foredraft's kernels for llama.cpp, and put them into the wheel.

Without a compiler, or where there are no kernels for the platform, the wheel has none and fits every
platform. An installation never fails because of them; a release build (cibuildwheel) does.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "foredraft/backends/llamacpp/native"


class KernelsHook(BuildHookInterface[Any]):
    """Compiles before the wheel is put together; for an editable installation beside the sources, too."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; `build_data` decides what goes into the wheel and what it is called."""
        if self.target_name != "wheel":
            return
        build = module_at(Path(self.root) / "src" / PACKAGE / "build.py")
        is_release = os.environ.get("CIBUILDWHEEL") == "1"
        try:
            libraries: list[Path] = build.build(everything=is_release)
        except (build.BuildError, OSError) as reason:  # OSError: a disk that is full or read-only
            if is_release:
                raise
            self.app.display_warning(f"Foredraft's kernels for llama.cpp are left out: {reason}.")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        if version != "editable":
            folder = build.FOLDER.name
            build_data["force_include"] |= {
                str(path): f"{PACKAGE}/{folder}/{path.name}" for path in libraries
            }


def module_at(path: Path) -> ModuleType:
    """A module of the sources, which are not installed yet."""
    spec = importlib.util.spec_from_file_location("foredraft_kernels_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
