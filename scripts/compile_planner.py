"""Compile the planner with mypyc, beside its sources: two thirds of the time for the same decisions.

Installing Foretoken does this (`build_hook.py`); after a change to `planner/` run it again, or go without:
`foretoken.compiled` notices. Needs mypy, setuptools and a C compiler; a minute or two. Exits with 1, and
leaves nothing compiled, where that fails: everything works from source, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from runpy import run_path

SOURCE = Path(__file__).parent.parent / "src"
PLANNER = SOURCE / "foretoken" / "planner"
GUARD = run_path(str(SOURCE / "foretoken" / "compiled.py"))
"""`foretoken.compiled`, of a package that may not be installed yet."""
GROUP = "foretoken.planner.native"
"""All modules are in one library, `native__mypyc`, and reach each other without Python's look-ups."""

SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup

group, scratch, *sources = sys.argv[1:]
sys.argv[1:] = ["build_ext", "--inplace", "--quiet", "--build-temp", scratch, "--build-lib", scratch]
options = ["--ignore-missing-imports", "--follow-imports", "silent", "--cache-dir", scratch + "/cache"]
modules = mypycify(
    [*options, *sources], group_name=group, opt_level="3", debug_level="0", target_dir=scratch
)
setup(name="foretoken-planner", packages=[], ext_modules=modules)
"""


def main() -> int:
    """Compile; the exit code."""
    clean()
    sources = [path for path in sorted(PLANNER.glob("*.py")) if path.name != "__init__.py"]
    # What is compiled, not what somebody made of it meanwhile.
    listed = {path.name: GUARD["fingerprint"](path) for path in sources}
    done = build([str(path.relative_to(SOURCE)) for path in sources])
    if done.returncode:
        print(done.stdout[-4000:])
        print("The planner could not be compiled: it runs from source, which takes longer between forwards.")
        return 1
    (PLANNER / GUARD["LIST"]).write_text(json.dumps(listed, indent=1), encoding="utf-8")
    print(f"Compiled {len(sources)} modules of the planner.")
    return 0


def clean() -> None:
    """Remove what was compiled before, the list first: without it nothing else counts."""
    (PLANNER / GUARD["LIST"]).unlink(missing_ok=True)
    for suffix in EXTENSION_SUFFIXES:
        for path in PLANNER.glob(f"*{suffix}"):
            path.unlink()


def build(sources: list[str]) -> subprocess.CompletedProcess[str]:
    """Run mypyc and the C compiler on modules, by their paths from `SOURCE`."""
    # Products and sums as Python rounds them: no compiler may fuse the two, as those for ARM would.
    flags = {} if os.name == "nt" else {"CFLAGS": f"{os.environ.get('CFLAGS', '')} -ffp-contract=off"}
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / "setup.py"
        script.write_text(SETUP, encoding="utf-8")
        return subprocess.run(  # noqa: S603 - our own words
            [sys.executable, str(script), GROUP, scratch, *sources],
            cwd=SOURCE,
            env=os.environ | flags,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


if __name__ == "__main__":
    sys.exit(main())
