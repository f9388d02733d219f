"""The llama.cpp library of this process: which one it is, and its functions.

It is the one in the `xllamacpp` wheel, or one that the user names (`choose`): any shared library of the same
llama.cpp, such as one that was built for a GPU. There is one for a process, because llama.cpp has one log
and one list of devices. It is loaded at the first use of `lib`, and refused if it is another llama.cpp.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foredraft import installation
from foredraft.backends.llamacpp import abi
from foredraft.errors import BackendError, ConfigError
from foredraft.registry import missing_dependency

PACKAGE = "xllamacpp"
NEEDED = f"llama.cpp {abi.LLAMA_VERSION} (build {abi.VERSION.rpartition('.')[2]})"


_NEEDED_BY_IT = {
    "libgomp": "OpenMP's library: apt install libgomp1 (Debian), dnf install libgomp (Fedora)",
    "libcuda.so": "NVIDIA's driver, which brings it; nvidia-smi shows whether it works",
    "libcu": "CUDA's libraries, of the version that this library was built with",
    "libvulkan": "Vulkan's loader: apt install libvulkan1 (Debian), dnf install vulkan-loader (Fedora)",
    "libamdhip": "ROCm, of the version that this library was built with",
    "librocblas": "ROCm, of the version that this library was built with",
    "libhipblas": "ROCm, of the version that this library was built with",
    "libggml": "the files libggml* built with it, where it looks for them (documentation: llama-library)",
}
"""What to install, by the start of the name of a library that the loader does not find."""


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded llama.cpp. `chosen`: the user named it. `built_for`: what it can compute on beside the
    processor, by ggml's names (CUDA, Vulkan, MTL, …). `key` and `name` change when the files do; `name` is
    for reports. `said`: the lines that ggml logged while it looked for devices.
    """

    path: Path
    handle: ctypes.CDLL
    chosen: bool
    built_for: tuple[str, ...]
    key: str
    name: str
    said: tuple[str, ...]


class _Handle(ctypes.CDLL):
    """A library, and those that it was built with: Windows looks for a function in the named file only."""

    def __init__(self, path: Path) -> None:
        self.others: list[ctypes.CDLL] = []
        super().__init__(str(path))
        if sys.platform == "win32":
            names = ("ggml.dll", "ggml-base.dll", "ggml-cpu.dll")
            self.others += [
                ctypes.CDLL(str(file)) for name in names if (file := path.with_name(name)).exists()
            ]

    def __getattr__(self, name: str) -> Any:
        for handle in self.others:
            if hasattr(handle, name):
                return getattr(handle, name)
        return super().__getattr__(name)


class _Functions(abi.Functions):
    """The functions of the process's library, which is loaded when the first of them is used."""

    def __getattr__(self, name: str) -> Any:
        if name not in abi.SIGNATURES:
            raise AttributeError(name)
        handle = library().handle
        functions = {name: _bound(handle, name) for name in abi.SIGNATURES}
        vars(self).update(functions)
        return functions[name]


lib = _Functions()
LOCK = threading.RLock()
"""Held while the process's library is loaded or changed."""

_chosen: list[Path] = []
_used: list[Library] = []


def choose(path: Path | None) -> None:
    """Use this library instead of the wheel's; None: no wish. Raises ConfigError if there is no such file, or
    another library was chosen or is in use already.
    """
    if path is None:
        return
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(
            f"There is no llama.cpp library {path}.",
            hint="Name the file: libllama.so, llama.dll or libllama.dylib (documentation: llama-library).",
        )
    with LOCK:
        used = _used[0].path if _used else chosen()
        if used is not None and used != path and not (used.exists() and used.samefile(path)):
            raise ConfigError(
                f"{used} is in use already; a process can have only one llama.cpp library.",
                hint=f"Restart with {path}.",
            )
        _chosen[:] = [path]


def chosen() -> Path | None:
    """The library that the user named, if any."""
    return _chosen[0] if _chosen else None


def library() -> Library:
    """The process's library. Raises MissingDependencyError, or BackendError if it cannot be used; another may
    be chosen then.
    """
    with LOCK:
        if not _used:
            try:
                _used.append(_loaded(_chosen[0] if _chosen else _packaged()))
            except BackendError:
                _chosen.clear()
                raise
        return _used[0]


def _loaded(path: Path) -> Library:
    handle = _opened(path)
    _check_version(handle, path)
    _said.clear()
    _bound(handle, "ggml_log_set")(_listener, None)  # until `log.install`
    _load_devices(handle, path)
    _check_functions(handle, path)
    built_for = _backends(handle)
    if _chosen:
        digest = _digest({path, *path.parent.glob("*ggml*")})
        key, name = f"{path}|{digest}", f"{path} ({', '.join((digest[:8], *built_for))})"
    else:
        package = ", ".join((f"{PACKAGE} {abi.VERSION}", *built_for))
        key, name = f"{package}|{path.stat().st_size}", f"({package})"
    said = tuple("".join(_said).splitlines())
    return Library(path, handle, bool(_chosen), built_for, key, f"llama.cpp {name}", said)


def _listen(_level: int, text: bytes | None, _user_data: object) -> None:
    _said.append((text or b"").decode("utf-8", "replace"))


_said: list[str] = []
_listener = abi.ggml_log_callback(_listen)


def _digest(files: Iterable[Path]) -> str:
    """Changes when one of a library's files does."""
    found = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files)]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def _backends(handle: ctypes.CDLL) -> tuple[str, ...]:
    """`Library.built_for`."""
    count, get = _bound(handle, "ggml_backend_reg_count"), _bound(handle, "ggml_backend_reg_get")
    name = _bound(handle, "ggml_backend_reg_name")
    names = {name(get(index)).decode("utf-8", "replace") for index in range(count())}
    return tuple(sorted(names - {"CPU"}))


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
    try:
        installed = version(PACKAGE)
    except PackageNotFoundError:  # a source tree on the path, for example
        return files[0]
    if installed.partition("+")[0] != abi.VERSION:
        raise _unfit(files[0], f"it is that of {PACKAGE} {installed}")
    return files[0]


def _opened(path: Path) -> _Handle:
    try:
        return _Handle(path)
    except OSError as error:
        raise BackendError(
            f"The llama.cpp library {path} cannot be loaded: {error}.", hint=_to_open(error)
        ) from error


def _to_open(error: OSError) -> str:
    """What to do where a library was not loaded."""
    missing = next((what for name, what in _NEEDED_BY_IT.items() if str(error).startswith(name)), None)
    if _chosen:
        other = "name another llama.cpp with --llama-library."
    else:
        other = f"take the library for processors: {_reinstall()}"
    return f"Install {missing or 'the library that it needs'}; or {other}"


def _check_version(handle: ctypes.CDLL, path: Path) -> None:
    """Raises BackendError for another version of llama.cpp, or another library."""
    for name, expected in (("llama_version", abi.LLAMA_VERSION), ("ggml_version", abi.GGML_VERSION)):
        if not hasattr(handle, name):
            raise _unfit(path, f"it has no {name}")
        found = _call(handle, name).decode("utf-8", "replace")
        if found != expected:
            raise _unfit(path, f"its {name.replace('_', '.cpp ' if name[0] == 'l' else ' ')} is {found}")


def _check_functions(handle: ctypes.CDLL, path: Path) -> None:
    """Raises BackendError for missing functions, or other structs, which show in the default parameters."""
    missing = [name for name in abi.SIGNATURES if not hasattr(handle, name)]
    if missing:
        some = ", ".join(missing[:3])
        raise _unfit(path, f"it lacks {len(missing)} functions ({some})")
    for name, expected_values in abi.DEFAULTS.items():
        values = _call(handle, name)
        wrong = [field for field, value in expected_values.items() if getattr(values, field) != value]
        if wrong:
            raise _unfit(path, f"its {name} has another {wrong[0]}")


def _unfit(path: Path, reason: str) -> BackendError:
    hint = "Use that version (documentation: llama-library), or leave --llama-library out."
    if not _chosen:
        hint = f"Install that version: {_reinstall()}"
    return BackendError(
        f"{path} is not {NEEDED}, which this version of Foredraft needs: {reason}.", hint=hint
    )


def _reinstall() -> str:
    return installation.add("--force-reinstall", f"{PACKAGE}=={abi.VERSION}")


def _call(handle: ctypes.CDLL, name: str) -> Any:
    """The result of a function without arguments, whose own declaration may be another."""
    function = getattr(handle, name)
    function.restype, function.argtypes = abi.SIGNATURES[name][0], ()
    return function()


def _bound(handle: ctypes.CDLL, name: str) -> Any:
    function = getattr(handle, name)
    function.restype, function.argtypes = abi.SIGNATURES[name]
    return function


def _load_devices(handle: ctypes.CDLL, path: Path) -> None:
    """Load the processor's and GPUs' parts that are separate files beside the library (GGML_BACKEND_DL)."""
    if _call(handle, "ggml_backend_dev_count") == 0:
        _bound(handle, "ggml_backend_load_all_from_path")(os.fsencode(path.parent))
    if _call(handle, "ggml_backend_dev_count") == 0:
        raise BackendError(
            f"The llama.cpp library {path} has no device to compute on.",
            hint="The files libggml-cpu*.so that were built with it have to lie in the same folder.",
        )
