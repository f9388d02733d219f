"""What building Foredraft does besides: parts that run between two forwards are compiled, if possible."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from runpy import run_path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompilingBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles beside the sources, where an editable install finds it; a wheel takes it along."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile. Without success the wheel is one of Python alone."""
        root = Path(self.root)
        subprocess.run([sys.executable, str(root / "scripts" / "compile_parts.py")], check=False)  # noqa: S603 - our own words
        guard = run_path(str(root / "src" / "foredraft" / "compiled.py"))
        for folder in guard["PARTS"]:
            if version != "editable" and guard["state"](folder) == "compiled":
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
                place = folder.relative_to(root).as_posix()
                build_data["artifacts"] += [f"{place}/{kind}" for kind in ("*.so", "*.pyd", guard["LIST"])]
