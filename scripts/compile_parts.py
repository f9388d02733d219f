"""Compile what runs between two forwards beside its sources: the same decisions and drafts, sooner.

The modules of `planner/` are compiled with mypyc, those of `planner/tables/` and `drafters/lookup/` that
say their types in a `.pxd` with Cython. Installing Foredraft does this (`build_hook.py`); after a change to
one of them run it again, or go without: `foredraft.compiled` notices. Needs mypy, Cython, setuptools and a C
compiler; two minutes. Exits with 1 where a part fails, of which nothing compiled is left: everything works
from source, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from runpy import run_path

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = SOURCE / "foredraft"
GUARD = run_path(str(PACKAGE / "compiled.py"))
"""`foredraft.compiled`, of a package that may not be installed yet."""

# Nothing is asserted of objects between two forwards, and numbers wrap around: Python's own flags say so,
# too, but they are gone where somebody has set CFLAGS. Products and sums are what Python rounds them to: no
# compiler may fuse the two, as those for ARM would. Functions of a library call each other at once, not by
# way of a table in which the linker may put others.
FLAGS = [] if os.name == "nt" else ["-DNDEBUG", "-fwrapv", "-ffp-contract=off", "-fvisibility=hidden"]

# mypyc: all modules are in one library, `native__mypyc`, and reach each other without Python's look-ups.
PLANNER = f"""
import sys
from mypyc.build import mypycify
from setuptools import setup

scratch, *sources = sys.argv[1:]
sys.argv[1:] = ["build_ext", "--inplace", "--quiet", "--build-temp", scratch, "--build-lib", scratch]
options = ["--ignore-missing-imports", "--follow-imports", "silent", "--cache-dir", scratch + "/cache"]
modules = mypycify(
    [*options, *sources],
    group_name="foredraft.planner.native",
    opt_level="2",
    debug_level="0",
    target_dir=scratch,
)
for module in modules:
    module.extra_compile_args += {FLAGS}
setup(name="foredraft-planner", packages=[], ext_modules=modules)
"""

TYPED = f"""
import sys
from pathlib import Path
from Cython.Build import cythonize
from setuptools import Extension, setup

scratch, *sources = sys.argv[1:]
sys.argv[1:] = ["build_ext", "--inplace", "--quiet", "--build-temp", scratch, "--build-lib", scratch]
arguments = [] if sys.platform == "win32" else ["-g0", "-Os", *{FLAGS}]
modules = [
    Extension(".".join(Path(source).with_suffix("").parts), [source], extra_compile_args=arguments)
    for source in sources
]
setup(name="foredraft-typed", packages=[], ext_modules=cythonize(modules, build_dir=scratch, quiet=True))
"""


@dataclass(frozen=True, slots=True)
class Part:
    """Modules of one folder, all with the same compiler. `typed`: only those that say their types in a
    `.pxd`. `setup`: the program that compiles them, called with a folder for what is left over, and paths.
    """

    name: str
    folder: Path
    setup: str
    typed: bool = False

    @property
    def sources(self) -> list[Path]:
        """The modules that are compiled."""
        modules = [path for path in sorted(self.folder.glob("*.py")) if path.name != "__init__.py"]
        return [path for path in modules if not self.typed or path.with_suffix(".pxd").exists()]

    @property
    def read(self) -> list[Path]:
        """All files that say what comes out."""
        return [*self.sources, *(sorted(self.folder.glob("*.pxd")) if self.typed else ())]

    def clean(self) -> None:
        """Remove what was compiled before, the list first: without it nothing else counts."""
        (self.folder / GUARD["LIST"]).unlink(missing_ok=True)
        for suffix in EXTENSION_SUFFIXES:
            for path in self.folder.glob(f"*{suffix}"):
                path.unlink()


PARTS = (
    Part("planner", PACKAGE / "planner", PLANNER),
    Part("planner's tables", PACKAGE / "planner" / "tables", TYPED, typed=True),
    Part("look-up of drafters", PACKAGE / "drafters" / "lookup", TYPED, typed=True),
)


def main() -> int:
    """Compile all parts; the exit code."""
    return max([compile_part(part) for part in PARTS])


def compile_part(part: Part) -> int:
    """Compile a part; 1 if that failed."""
    part.clean()
    sources = part.sources
    # What is compiled, not what somebody made of it meanwhile.
    listed = {path.name: GUARD["fingerprint"](path) for path in part.read}
    done = build(part, [str(path.relative_to(SOURCE)) for path in sources])
    if done.returncode:
        part.clean()
        print(done.stdout[-4000:])
        print(f"The {part.name} could not be compiled: it runs from source, which takes longer.")
        return 1
    (part.folder / GUARD["LIST"]).write_text(json.dumps(listed, indent=1), encoding="utf-8")
    print(f"Compiled {len(sources)} modules of the {part.name}.")
    return 0


def build(part: Part, sources: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the part's compiler and the C compiler on modules, by their paths from `SOURCE`."""
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / "setup.py"
        script.write_text(part.setup, encoding="utf-8")
        return subprocess.run(  # noqa: S603 - our own words
            [sys.executable, str(script), scratch, *sources],
            cwd=SOURCE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


if __name__ == "__main__":
    sys.exit(main())
