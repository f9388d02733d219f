"""Compile the kernels for this platform: `python build.py`.

Uses only the standard library and nothing of Foredraft, since it also runs while Foredraft is installed
(`hatch_build.py`). There is one library for each level of instructions; `kernels.py` chooses one at run time.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent
FOLDER = SOURCES / "lib"
"""Where the libraries of a checkout or an installed package are."""

LEVELS = {
    "avx512": ("avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512vnni"),
    "avxvnni": ("avx2", "fma", "f16c", "avxvnni"),
    "avx2": ("avx2", "fma", "f16c"),
}
"""Levels, the best first, and the instruction sets of each by the compiler's names."""

OPTIONS = (
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    # Where one rounding is meant, the kernels say so (`fma`). By itself GCC made one of a product and a sum
    # in the attention of a single row, not in that of several, and both have to have the same bits.
    "-ffp-contract=off",
)
COMPILERS = ("c++", "g++", "clang++")
SYSTEMS = ("Linux",)
MACHINES = ("x86_64", "AMD64")


class BuildError(Exception):
    """The kernels cannot be compiled here; the message says why, in one line."""


class MissingCompilerError(BuildError):
    """There is no C++ compiler, or it is not the one that was named."""


def sources_hash() -> str:
    """A hash of everything that decides what is compiled: the sources, the levels and the options."""
    digest = hashlib.sha256(repr((LEVELS, OPTIONS)).encode())
    for path in sorted((*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def library_name(level: str) -> str:
    """The file name of a level's library."""
    return f"libforedraft-{level}.so"


def is_supported() -> bool:
    """Whether there are kernels for this system and processor architecture."""
    return platform.system() in SYSTEMS and platform.machine() in MACHINES


def build(folder: Path = FOLDER, *, everything: bool = False) -> list[Path]:
    """Compile into this folder what is not there yet, and return the libraries. Levels that the compiler is
    too old for are left out, unless `everything` is wanted. Raises BuildError.
    """
    if not is_supported():
        raise BuildError(f"there are none for {platform.system()} on {platform.machine()}")
    compiler = compiler_command()
    levels = [level for level in LEVELS if everything or _knows(compiler, level)]
    if not levels:
        raise BuildError(f"{compiler[0]} does not know AVX2")
    identity = _identity(compiler)
    missing = [level for level in levels if not _is_current(folder / library_name(level), identity)]
    with tempfile.TemporaryDirectory() as objects, ThreadPoolExecutor(os.cpu_count()) as pool:
        units = [
            (level, source, Path(objects) / f"{level}-{source.stem}.o")
            for source in sorted(SOURCES.glob("*.cpp"), key=lambda path: -path.stat().st_size)
            for level in missing
        ]
        defined = [f"-DFOREDRAFT_SOURCES={sources_hash()}", f"-DFOREDRAFT_COMPILER={identity}"]
        list(pool.map(lambda unit: _compile([*compiler, *OPTIONS, *defined], *unit), units))
        folder.mkdir(parents=True, exist_ok=True)
        for level in missing:
            _link(compiler, [unit for name, _, unit in units if name == level], folder / library_name(level))
    return [folder / library_name(level) for level in levels]


def _is_current(library: Path, identity: str) -> bool:
    """Whether this file was compiled from the sources as they are, by the compiler of that identity: both
    hashes are in it.
    """
    if not library.is_file():
        return False
    content = library.read_bytes()
    return all(part.encode() in content for part in (sources_hash(), identity))


def _identity(compiler: list[str]) -> str:
    """A hash of the compiler's command and version."""
    return hashlib.sha256(repr((compiler, run([*compiler, "--version"]))).encode()).hexdigest()[:16]


def _knows(compiler: list[str], level: str) -> bool:
    """Whether the compiler has the instruction sets of a level."""
    try:
        run([*compiler, *_flags(level), "-x", "c++", "-fsyntax-only", os.devnull])
    except MissingCompilerError:
        raise
    except BuildError:
        return False
    return True


def compiler_command() -> list[str]:
    """The command that compiles C++."""
    if named := os.environ.get("CXX"):
        return shlex.split(named)
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        raise MissingCompilerError("there is no C++ compiler")
    return [found]


def _flags(level: str) -> list[str]:
    return [f"-m{name}" for name in LEVELS[level]]


def _compile(command: list[str], level: str, source: Path, to: Path) -> None:
    run([*command, *_flags(level), "-c", str(source), "-o", str(to)])


def _link(compiler: list[str], objects: list[Path], to: Path) -> None:
    """Written beside its place and moved there: a process may have the old one open."""
    beside = to.with_suffix(f".{os.getpid()}")
    try:
        run([*compiler, "-shared", *map(str, objects), "-o", str(beside), "-ldl"])
        beside.replace(to)
    finally:
        beside.unlink(missing_ok=True)


def run(command: list[str]) -> str:
    """What the command prints. Raises BuildError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a compiler
    except OSError as error:
        raise MissingCompilerError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
        raise BuildError(f"the compiler failed: {first}")
    return done.stdout


def main() -> int:
    """Compile; returns the exit code."""
    try:
        libraries = build()
    except (BuildError, OSError) as error:
        sys.stderr.write(f"Foredraft's kernels are left out: {error}.\n")
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in libraries))
    return 0


if __name__ == "__main__":
    sys.exit(main())
