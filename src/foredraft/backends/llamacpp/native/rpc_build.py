"""Compile llama.cpp's RPC backend, which the packaged library lacks: `foredraft rpc-build`.

Its sources come from the source distribution of the package that Foredraft runs on, so that both are the
same llama.cpp; the connections are ours (`rpc/transport.cpp`). Where the library is loaded into a process, it
finds ggml's functions in the llama.cpp library there.
"""

from __future__ import annotations

import hashlib
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
LIBRARY = build.FOLDER / "libforedraft-rpc.so"
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


def is_current(library: Path = LIBRARY) -> bool:
    """Whether this library was compiled from the sources as they are."""
    return library.is_file() and sources_hash().encode() in library.read_bytes()


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


def compile_library(archive: Path, to: Path = LIBRARY) -> Path:
    """Compile from this source distribution, and return the library. Raises BuildError."""
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
        to.parent.mkdir(parents=True, exist_ok=True)
        beside = to.with_suffix(".new")  # a process may have the old one open
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
