"""The llama.cpp library of this process: which one it is, and its functions.

It is the one in the `xllamacpp` wheel, or one that the user names (`choose`): any shared library of the same
llama.cpp, such as one that was built for a GPU. There is one for a process, because llama.cpp has one log
and one list of devices. It is loaded at the first use of `lib`, and refused if it is another llama.cpp.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foredraft import installation
from foredraft.backends.llamacpp import abi
from foredraft.errors import BackendError, ConfigError
from foredraft.registry import missing_dependency

PACKAGE = "xllamacpp"
NEEDED = f"llama.cpp {abi.LLAMA_VERSION} (build {abi.VERSION.rpartition('.')[2]})"


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded llama.cpp. `chosen`: the user named it. `key` changes when the file does."""

    path: Path
    handle: ctypes.CDLL
    chosen: bool
    key: str

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return f"llama.cpp {self.path}" if self.chosen else f"llama.cpp ({PACKAGE} {abi.VERSION})"


class _Functions(abi.Functions):
    """The functions of the process's library, which is loaded when the first of them is used."""

    def __getattr__(self, name: str) -> Any:
        if name not in abi.SIGNATURES:
            raise AttributeError(name)
        functions = _bound(library())
        vars(self).update(functions)
        return functions[name]


lib = _Functions()
LOCK = threading.RLock()
"""Held while the process's library is loaded or changed."""

_chosen: list[Path] = []


def choose(path: Path | None) -> None:
    """Use this library instead of the wheel's; None: no wish. Raises ConfigError if there is no such file, or
    another library is in use already.
    """
    if path is None:
        return
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(
            f"There is no llama.cpp library {path}.",
            hint="Name the file: libllama.so, llama.dll or libllama.dylib.",
        )
    with LOCK:
        if library.cache_info().currsize and not library().path.samefile(path):
            raise ConfigError(
                f"{library().path} is in use already; a process can have only one llama.cpp library.",
                hint=f"Restart with {path}.",
            )
        _chosen[:] = [path]


def chosen() -> Path | None:
    """The library that the user named, if any."""
    return _chosen[0] if _chosen else None


@cache
def library() -> Library:
    """The process's library. Raises MissingDependencyError, or BackendError if it cannot be used."""
    with LOCK:
        path = _chosen[0] if _chosen else _packaged()
        handle = _opened(path)
        _check(handle, path)
        _load_devices(handle, path)
        found = path.stat()
        key = f"{path}|{found.st_size}|{found.st_mtime_ns}" if _chosen else f"{PACKAGE} {abi.VERSION}"
        return Library(path, handle, bool(_chosen), key)


def _packaged() -> Path:
    """The library in the wheel, which is found without importing it."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise missing_dependency(PACKAGE, "Running GGUF models")
    folder = Path(spec.origin).parent
    suffixes = (".pyd", ".dll") if sys.platform == "win32" else (".so", ".dylib")
    files = [file for file in sorted(folder.glob(f"{PACKAGE}*")) if file.suffix in suffixes]
    if not files:
        raise BackendError(f"{PACKAGE} in {folder} has no library.", hint=_reinstall())
    return files[0]


def _opened(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        hint = "Install the library that it needs, or name another llama.cpp with --llama-library."
        if "libgomp" in str(error):
            hint = "Install OpenMP's library: apt install libgomp1 (Debian), dnf install libgomp (Fedora)."
        raise BackendError(f"The llama.cpp library {path} cannot be loaded: {error}.", hint=hint) from error


def _check(handle: ctypes.CDLL, path: Path) -> None:
    """Raises BackendError for another llama.cpp: missing functions, another version, or other structs, which
    show in its default parameters.
    """
    missing = [name for name in abi.SIGNATURES if not hasattr(handle, name)]
    if missing:
        some = ", ".join(missing[:3])
        raise _unfit(path, f"it lacks {len(missing)} functions ({some})")
    for name, expected in (("llama_version", abi.LLAMA_VERSION), ("ggml_version", abi.GGML_VERSION)):
        found = _call(handle, name).decode("utf-8", "replace")
        if found != expected:
            raise _unfit(path, f"its {name.replace('_', '.cpp ' if name[0] == 'l' else ' ')} is {found}")
    for name, expected_values in abi.DEFAULTS.items():
        values = _call(handle, name)
        wrong = [field for field, value in expected_values.items() if getattr(values, field) != value]
        if wrong:
            raise _unfit(path, f"its {name} has another {wrong[0]}")


def _unfit(path: Path, reason: str) -> BackendError:
    return BackendError(
        f"{path} is not {NEEDED}, which this version of Foredraft needs: {reason}.",
        hint=f"Use that version (docs/llama-library.md), or the packaged one: {_reinstall()}",
    )


def _reinstall() -> str:
    return installation.add("--force-reinstall", f"{PACKAGE}=={abi.VERSION}")


def _call(handle: ctypes.CDLL, name: str) -> Any:
    function = getattr(handle, name)
    function.restype, function.argtypes = abi.SIGNATURES[name][0], ()
    return function()


def _load_devices(handle: ctypes.CDLL, path: Path) -> None:
    """Load the processor's and GPUs' parts that are separate files beside the library (GGML_BACKEND_DL)."""
    if _call(handle, "ggml_backend_dev_count") == 0:
        load = handle.ggml_backend_load_all_from_path
        load.restype, load.argtypes = abi.SIGNATURES["ggml_backend_load_all_from_path"]
        load(os.fsencode(path.parent))
    if _call(handle, "ggml_backend_dev_count") == 0:
        raise BackendError(
            f"The llama.cpp library {path} has no device to compute on.",
            hint="The files libggml-cpu*.so that were built with it have to lie in the same folder.",
        )


def _bound(loaded: Library) -> dict[str, Any]:
    functions: dict[str, Any] = {}
    for name, (result, arguments) in abi.SIGNATURES.items():
        function = getattr(loaded.handle, name)
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions
