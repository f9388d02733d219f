"""What building Foretoken does besides: the planner is compiled, where that is possible."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlannerBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the planner beside its sources, where an editable install finds it; a wheel takes it along."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile. Without success the wheel is one of Python alone."""
        script = Path(self.root) / "scripts" / "compile_planner.py"
        command = [sys.executable, str(script)]
        compiled = subprocess.run(command, check=False).returncode == 0  # noqa: S603 - our own words
        if compiled and version != "editable":
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            kinds = ("*.so", "*.pyd", "compiled.json")
            build_data["artifacts"] += [f"src/foretoken/planner/{kind}" for kind in kinds]
