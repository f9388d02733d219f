"""Compile llama.cpp's RPC backend, which the packaged library lacks: `foredraft rpc-build`.

Its sources come from the source distribution of the package that Foredraft runs on, so that both are the
same llama.cpp; the connections are ours (`rpc/transport.cpp`). Where the library is loaded into a process, it
finds ggml's functions in the llama.cpp library there.

It lies beside the kernels in the package; where that belongs to another user, or is read-only, in the cache
folder, under the hash of its sources.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from foredraft.backends.llamacpp.native import build
from foredraft.backends.llamacpp.native.build import BuildError

VERSION = "2026.10.11549"
"""Of the package, whose end is llama.cpp's build."""

SHA256 = "c17ee1163006f70726abb9f72137830818f3d8cb60bfc34cb232d08428eaa22b"
"""Of its source distribution on PyPI."""

SOURCES = build.SOURCES / "rpc"
FILE = "libforedraft-rpc.so"
NAME = f"xllamacpp-{VERSION}"

_PACKED = f"{NAME}/thirdparty/llama.cpp/ggml/"
_FOLDERS = ("include/", "src/ggml-rpc/")
_HEADERS = (
    "src/ggml-impl.h",
    "src/ggml-backend-impl.h",
    "src/ggml-cpu/traits.h",
    "src/ggml-cpu/ggml-cpu-impl.h",
)
_OPTIONS = ("-std=c++17", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-pthread")
_LINK = {"darwin": ("-undefined", "dynamic_lookup"), "linux": ("-Wl,-Bsymbolic",)}
"""On Linux its own functions come before those of a llama.cpp library that has an RPC backend, too."""


def sources_hash() -> str:
    """A hash of everything that decides what is compiled."""
    digest = hashlib.sha256(repr((SHA256, _OPTIONS)).encode())
    for path in sorted((*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def places(cache: Path | None, package: Path = build.FOLDER) -> list[Path]:
    """Where the library may be: in this folder of the package, and in a cache folder, if there is one."""
    kept = [] if cache is None else [cache / "native" / sources_hash() / FILE]
    return [package / FILE, *kept]


def find(cache: Path | None, package: Path = build.FOLDER) -> Path | None:
    """The library that was compiled from the sources as they are, None if there is none."""
    return next(filter(_is_current, places(cache, package)), None)


def place(cache: Path, package: Path = build.FOLDER) -> Path:
    """Where to compile it to: the first of its places that can be written to."""
    first, second = places(cache, package)
    return first if _is_writable(first.parent) else second


def _is_current(library: Path) -> bool:
    try:
        return sources_hash().encode() in library.read_bytes()
    except OSError:
        return False


def _is_writable(folder: Path) -> bool:
    """Whether a file can be made there; made where it is not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def download(folder: Path) -> Path:
    """The source distribution, by pip. Raises BuildError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "xllamacpp"]
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            [*command, "-d", str(folder), f"xllamacpp=={VERSION}"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise BuildError(f"pip cannot be run: {error.strerror}") from None
    found = list(folder.glob(f"{NAME}.tar.gz"))
    if done.returncode or not found:
        said = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise BuildError(f"pip cannot download the sources of xllamacpp {VERSION}: {said}")
    return found[0]


def compile_library(archive: Path, to: Path) -> Path:
    """Compile from this source distribution, and return the library. Raises BuildError, OSError."""
    _check(archive)
    compiler = build.compiler_command()
    with tempfile.TemporaryDirectory() as temporary:
        ggml = _unpacked(archive, Path(temporary))
        included = [f"-I{folder}" for folder in (ggml / "include", ggml / "src", ggml / "src/ggml-rpc")]
        defined = ["-DGGML_SHARED", "-DGGML_BACKEND_SHARED", "-DGGML_BACKEND_BUILD"]
        defined += [f"-DFOREDRAFT_SOURCES={sources_hash()}"]
        objects = [Path(temporary) / f"{source.stem}.o" for source in sorted(SOURCES.glob("*.cpp"))]

        def compile_one(made: Path) -> None:
            source = SOURCES / f"{made.stem}.cpp"
            build.run([*compiler, *_OPTIONS, *included, *defined, "-c", str(source), "-o", str(made)])

        with ThreadPoolExecutor() as pool:
            list(pool.map(compile_one, objects))
        to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = to.with_suffix(f".{os.getpid()}")  # a process may have the old one open
        linking = ["-shared", "-pthread", *_LINK.get(sys.platform, ())]
        try:
            build.run([*compiler, *linking, *map(str, objects), "-o", str(beside)])
            beside.replace(to)
        finally:
            beside.unlink(missing_ok=True)
    return to


def _check(archive: Path) -> None:
    """Raises BuildError unless it is the source distribution of that version."""
    try:
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
    except OSError as error:
        raise BuildError(f"{archive} cannot be read: {error.strerror}") from None
    if found != SHA256:
        raise BuildError(f"{archive} is not the source distribution of xllamacpp {VERSION}: its hash differs")


def _unpacked(archive: Path, folder: Path) -> Path:
    """The folder of ggml, with the files that are needed."""
    with tarfile.open(archive) as packed:
        wanted = [
            member
            for member in packed
            if member.isfile()
            and member.name.startswith(_PACKED)
            and member.name.removeprefix(_PACKED).startswith((*_FOLDERS, *_HEADERS))
        ]
        packed.extractall(folder, wanted, filter="data")
    return folder / _PACKED
