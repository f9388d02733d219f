"""How Foredraft was installed, and the command that adds a package to that installation.

A fixed hint such as "pip install 'foredraft[hub]'" is only right for an installation by name with the first
`pip` on the path. A checkout is installed by its folder, a wheel by its file, and pipx and uv have their own
environments for tools.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "foredraft"


@dataclass(frozen=True, slots=True)
class Installation:
    """One installation of Foredraft.

    `tool` manages the environment in `prefix` ("uv pip": an environment without pip; "uv tool": installed
    with `extras`). `source` is the URL it was installed from, None for a package index. `editable`: the
    source is a checkout that runs in place.
    """

    tool: Literal["pip", "pipx", "uv pip", "uv tool"]
    prefix: Path
    python: str
    source: str | None = None
    editable: bool = False
    extras: tuple[str, ...] = ()

    def add_extra(self, extra: str) -> str:
        """The command that installs one of Foredraft's extras here."""
        if self.tool == "uv tool":  # it recreates the environment: name the present extras too
            extras = ",".join(sorted({*self.extras, extra}))
            return shlex.join(["uv", "tool", "install", "--force", *self._requirement(extras)])
        return self.add(*self._requirement(extra))

    def add(self, *arguments: str) -> str:
        """The command that installs other packages here: `arguments` of `pip install`."""
        return shlex.join([*self._installer(), *arguments])

    def _requirement(self, extras: str) -> list[str]:
        if self.source is None:
            return [f"{NAME}[{extras}]"]
        if self.editable:
            return ["--editable", f"{url2pathname(urlsplit(self.source).path)}[{extras}]"]
        return [f"{NAME}[{extras}] @ {self.source}"]

    def _installer(self) -> list[str]:
        if self.tool == "pipx":
            return ["pipx", "runpip", self.prefix.name, "install"]
        if self.tool == "pip":
            return [self.python, "-m", "pip", "install"]
        return ["uv", "pip", "install", "--python", self.python]


def this() -> Installation:
    """The running installation."""
    prefix = Path(sys.prefix)
    source, editable = _origin()
    tool, extras = _tool(prefix)
    return Installation(tool, prefix, sys.executable, source, editable, extras)


def add_extra(extra: str) -> str:
    """The command that adds one of Foredraft's extras to the running installation."""
    return this().add_extra(extra)


def add(*arguments: str) -> str:
    """The command that adds other packages to the running installation: `arguments` of `pip install`."""
    return this().add(*arguments)


def platform_without_llama_cpp() -> str:
    """What this platform is called if there is no compiled llama.cpp for it on PyPI; empty if there is."""
    system, machine = platform.system(), platform.machine().lower()
    if system == "Linux" and "musl" in (sysconfig.get_config_var("SOABI") or ""):
        return f"Linux with musl ({machine})"
    return "" if machine in _COMPILED.get(system, ()) else f"{system} on {machine}"


_COMPILED = {
    "Linux": ("x86_64", "aarch64"),
    "Darwin": ("x86_64", "arm64"),
    "Windows": ("amd64",),
}
"""The processors that the wheels of xllamacpp are for."""


def _tool(prefix: Path) -> tuple[Literal["pip", "pipx", "uv pip", "uv tool"], tuple[str, ...]]:
    if (prefix / "pipx_metadata.json").exists():
        return "pipx", ()
    receipt = prefix / "uv-receipt.toml"
    if receipt.exists():
        return "uv tool", _extras(receipt)
    return ("pip" if find_spec("pip") else "uv pip"), ()


def _extras(receipt: Path) -> tuple[str, ...]:
    """The extras in uv's receipt; none if it cannot be read."""
    try:
        requirements = tomllib.loads(receipt.read_text(encoding="utf-8"))["tool"]["requirements"]
        return tuple(extra for one in requirements if one["name"] == NAME for extra in one.get("extras", ()))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _origin() -> tuple[str | None, bool]:
    """The URL of the installation's source (PEP 610), and whether it is editable."""
    try:
        note = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:
        return None, False
    if note is None:
        return None, False
    origin = json.loads(note)
    revision = origin.get("vcs_info")
    source = f"{revision['vcs']}+{origin['url']}@{revision['commit_id']}" if revision else origin["url"]
    return source, bool(origin.get("dir_info", {}).get("editable"))
