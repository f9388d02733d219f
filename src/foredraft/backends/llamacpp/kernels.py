"""Foredraft's own kernels, attached to the process's llama.cpp library.

They let the rows of a draft share reads of weights and of the context, and are faster for one row, too. They
are a small library of their own (`native/`), compiled when Foredraft is installed where there is a C++
compiler, and attach themselves to a llama.cpp library that was compiled without them (decision 0005). That
relies on more than the library's C API, so each pair of libraries is first tried in another process
(`kernel_check`). Where anything does not fit they are left out, and llama.cpp's own kernels are used.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import shlex
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from foredraft import cpu_info
from foredraft.backends.llamacpp import abi, binding
from foredraft.backends.llamacpp.native import build
from foredraft.errors import ChildDiedError, ForedraftError
from foredraft.files import write_atomically
from foredraft.isolation.pool import ChildPool

logger = logging.getLogger(__name__)

NAMES = {
    "avx512": "AVX-512 with VNNI",
    "avxvnni": "AVX-VNNI",
    "avx2": "AVX2",
}
"""What the levels of `build.LEVELS` are called in reports."""

SECONDS = 30.0
"""Time limit of a check, in seconds, for very busy machines. It takes less than a second on an idle one."""

MEMORY = 4 << 30
"""Memory limit of a check, in bytes: libraries for GPUs take much when they are loaded."""

_FUNCTION = "foredraft.backends.llamacpp.kernel_check:fault"
_LINUX_NAMES = {"avx512vnni": "avx512_vnni", "avxvnni": "avx_vnni"}
_BUILD = int(abi.VERSION.rpartition(".")[2])


class LeftOutError(Exception):
    """The kernels cannot be used; the message says why, in a line without a full stop."""


class _Named(ctypes.Structure):
    """A number with a name, in `native/ggml_abi.h`."""

    number: int
    name: bytes | None
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p))


class NativeLibrary:
    """A library of kernels of one level; nothing is attached yet."""

    def __init__(self, path: Path) -> None:
        """Raises LeftOutError if it is of another version, or cannot be loaded."""
        text, pointer = ctypes.c_char_p, ctypes.c_void_p
        try:
            self.handle = ctypes.CDLL(str(path))
            if not self._is_current():  # first: an outdated one may lack what is looked for here
                raise LeftOutError(f"they were compiled from other sources: run {_how_to_compile()}")
            self._declare("foredraft_attach", text, pointer)
            self._declare("foredraft_detach", None)
            self._declare("foredraft_found_by_models", ctypes.c_bool)
            self._declare("foredraft_hide", None, ctypes.c_int)
            self._declare("foredraft_buffer_type", pointer)
            self._declare("foredraft_panel", ctypes.c_int)
            self._declare("foredraft_build", ctypes.c_int)
            self._declare("foredraft_tensor_layout", ctypes.POINTER(_Named))
            self._declare("foredraft_graphs_attach", text, pointer)
            self._declare("foredraft_graphs_refused", text, pointer)
            self._declare("foredraft_graph_new", pointer, pointer)
            self._declare("foredraft_graph_swap", None, pointer, pointer)
            self._declare("foredraft_graph_free", None, pointer)
        except (OSError, AttributeError) as error:
            raise LeftOutError(f"{path.name} cannot be loaded: {error}") from None
        self.path = path

    def _is_current(self) -> bool:
        if not hasattr(self.handle, "foredraft_sources"):
            return False
        self._declare("foredraft_sources", ctypes.c_char_p)
        return self.sources == build.sources_hash()

    def _declare(self, name: str, result: object, *arguments: object) -> None:
        function = getattr(self.handle, name)
        function.restype, function.argtypes = result, arguments

    @property
    def sources(self) -> str:
        """The hash of what it was compiled from (`build.sources_hash`)."""
        return str(self.handle.foredraft_sources().decode("ascii", "replace"))

    def tensor_layout(self) -> dict[str, int]:
        """Offsets in a tensor by member, in bytes, and its size under an empty name."""
        places: dict[str, int] = {}
        for place in self.handle.foredraft_tensor_layout():
            places[(place.name or b"").decode()] = place.number
            if not place.name:
                break
        return places

    def attach(self, library: ctypes.CDLL) -> None:
        """Attach the kernels to a llama.cpp library, before it loads a model. Raises LeftOutError, and then
        nothing has changed.
        """
        if self.handle.foredraft_build() != _BUILD:
            raise LeftOutError(f"they are for build {self.handle.foredraft_build()} of llama.cpp")
        if self.tensor_layout() != _expected_layout():
            raise LeftOutError("a tensor has other members in this llama.cpp")
        if fault := self.handle.foredraft_attach(library._handle):
            raise LeftOutError(f"this llama.cpp is compiled otherwise: {fault.decode()}")

    def detach(self) -> None:
        """Undo `attach`, while nothing is computed."""
        self.handle.foredraft_detach()


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels that are attached. `key` changes when a result may change."""

    level: str
    native: NativeLibrary
    key: str


class _State:
    """The process's kernels: not attached yet, attached, or left out for a reason."""

    kernels: Kernels | None = None
    left_out: str | None = None


_state = _State()


def attach(cache: Path | None = None) -> None:
    """Attach the kernels to the process's llama.cpp library, once; before its first model is loaded. A new
    pair of libraries is tried in a child process; `cache` is the folder that keeps the result. Raises only
    what `binding.library` does.
    """
    library = binding.library()
    with binding.LOCK:
        if _state.kernels is None and _state.left_out is None:
            try:
                _state.kernels = _attached(library, cache)
            except LeftOutError as reason:
                _state.left_out = str(reason)
                logger.info("Foredraft's kernels are left out: %s.", reason)


def leave_out(reason: str) -> None:
    """Compute with llama.cpp's own kernels in this process, for a comparison; before a model is loaded."""
    with binding.LOCK:
        if _state.kernels is not None:
            raise RuntimeError("The kernels are attached already.")
        _state.left_out = reason


def in_use() -> Kernels | None:
    """The kernels that are attached; None: llama.cpp computes with its own."""
    return _state.kernels


def identity() -> str:
    """The kernels' level and version; empty without any. Part of the keys of cached measurements."""
    return _state.kernels.key if _state.kernels else ""


def describe() -> str:
    """What is in use, for reports; empty without any."""
    return f"products and attention with {NAMES[_state.kernels.level]}" if _state.kernels else ""


def left_out() -> str:
    """Why none are in use, in a line without a full stop; empty if they are, or nothing asked for them."""
    return _state.left_out or ""


def are_missing() -> bool:
    """Whether they were left out on a machine that there are kernels for."""
    processor = cpu_info.instructions_of(cpu_info.first_processor())
    return bool(_state.left_out) and build.is_supported() and bool(levels_of(processor))


def levels_of(instructions: Set[str]) -> list[str]:
    """The levels that a processor with these instruction sets (Linux's names) can run, the best first."""
    return [level for level in build.LEVELS if instructions_of(level) <= instructions]


def instructions_of(level: str) -> frozenset[str]:
    """The instruction sets that a level needs, by Linux's names."""
    return frozenset(_LINUX_NAMES.get(name, name) for name in build.LEVELS[level])


def library_of(level: str, folder: Path = build.FOLDER) -> NativeLibrary:
    """The compiled library of a level. Raises LeftOutError."""
    path = folder / build.library_name(level)
    if not path.exists():
        raise LeftOutError(
            "they were not compiled when Foredraft was installed: where there is a C++ compiler, "
            f"run {_how_to_compile()}"
        )
    return NativeLibrary(path)


def _how_to_compile() -> str:
    return f"'{shlex.join([sys.executable, build.__file__])}'"


def _attached(library: binding.Library, cache: Path | None) -> Kernels:
    if not build.is_supported():
        raise LeftOutError("there are none for this kind of machine")
    levels = levels_of(cpu_info.instructions_of(cpu_info.first_processor()))
    if not levels:
        raise LeftOutError("this processor lacks AVX2, FMA or F16C")
    level, native = _best(levels)
    if fault := _checked(library, native, cache):
        logger.warning("Foredraft's kernels are left out, so everything takes longer: %s.", fault)
        raise LeftOutError(fault)
    native.attach(library.handle)
    if not native.handle.foredraft_found_by_models():
        native.detach()
        raise LeftOutError("llama.cpp loaded a model before them in this process")
    # Not of the sources only: another compiler may round otherwise.
    digest = hashlib.sha256(native.path.read_bytes()).hexdigest()[:16]
    return Kernels(level, native, f"{level} {digest}")


def _best(levels: Sequence[str]) -> tuple[str, NativeLibrary]:
    """The best level that can be used: an old compiler may not have known the best. Raises LeftOutError."""
    compiled = [level for level in levels if (build.FOLDER / build.library_name(level)).exists()]
    reasons: list[LeftOutError] = []
    for level in compiled or levels[:1]:
        try:
            return level, library_of(level)
        except LeftOutError as reason:
            reasons.append(reason)
    raise reasons[0]


def _checked(library: binding.Library, native: NativeLibrary, cache: Path | None) -> str:
    """What is wrong with this pair of libraries, or an empty text: as stored, or by trying them."""
    found = native.path.stat()
    identity = (
        f"{library.path}|{library.key}|{native.path}|{found.st_size}|{found.st_mtime_ns}|{native.sources}"
    )
    name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    stored = cache / "probes" / f"kernels-{name}.json" if cache else None
    if stored is not None:
        try:
            return str(json.loads(stored.read_text(encoding="utf-8"))["fault"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # checked again
    fault, is_lasting = _tried(library, native)
    if stored is not None and is_lasting:
        try:
            write_atomically(stored, json.dumps({"fault": fault}).encode())
        except OSError as error:
            logger.debug("The check of the kernels is not stored: %s", error)
    return fault


def _tried(library: binding.Library, native: NativeLibrary) -> tuple[str, bool]:
    """What is wrong, found in a child process; and whether it would be found again, also on another day."""
    try:
        with ChildPool(size=1, memory=MEMORY) as children:
            chosen = str(library.path) if library.chosen else ""
            return str(children.call(_FUNCTION, chosen, str(native.path), seconds=SECONDS)), True
    except ChildDiedError as error:
        return f"their check failed: {error.message.rstrip('.')}", not error.transient
    except ForedraftError as error:
        return f"they could not be checked: {error.message.rstrip('.')}", False


def _expected_layout() -> dict[str, int]:
    """A tensor's layout in the binding, as `NativeLibrary.tensor_layout` has it."""
    places = {name: getattr(abi.ggml_tensor, name).offset for name, *_ in abi.ggml_tensor._fields_}
    places.pop("padding")
    return places | {"": ctypes.sizeof(abi.ggml_tensor)}
