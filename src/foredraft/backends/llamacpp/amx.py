"""Decides whether llama.cpp may pack weights for AMX: only if its products are right.

On a processor with AMX, llama.cpp packs quantised weights for AMX's tiles, with which several rows cost
little more than one. But GCC 12 assumes that the instruction that configures the tiles reads 8 bytes where it
reads 64, and removes the stores of the other 56 (llama.cpp's issue 20824): the configuration is whatever is
on the stack, and the first forward ends the program. That can be neither caught nor predicted, so another
process tests it (`amx_check`, 0.2 s) with every type of weights. All of them must be right, since llama.cpp
has one list of buffer types for all models of a process. Otherwise AMX is removed from that list, and weights
are packed for AVX-512 or AVX2.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llama_cpp._ggml as ggml

from foredraft.backends.llamacpp import amx_check, kernels
from foredraft.backends.llamacpp.buffer_types import offers_amx, without_amx
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.errors import ForedraftError

ARCHITECTURES = frozenset(
    (
        *("arcee", "command-r", "cohere2", "exaone", "gemma", "gemma2", "gemma3", "glm4", "granite"),
        *("granitemoe", "internlm2", "llama", "minicpm", "nemotron", "olmo", "olmo2", "olmoe", "phi2"),
        *("phi3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "smollm3", "stablelm", "starcoder2"),
    )
)
"""Architectures that only multiply a matrix of weights by a matrix of rows. If rows come sequence by sequence
(Mamba, LFM2, Qwen3.5) or weights as a stack (DeepSeek), llama.cpp's AMX kernels read past their end.
"""

SECONDS = 20.0
"""Time limit of the check, in seconds, for very busy machines. It takes 0.2 s on an idle one."""


@dataclass(frozen=True, slots=True)
class Amx:
    """Whether AMX is used, and the result of the check."""

    used: bool
    note: str

    @property
    def remedy(self) -> str:
        """The command that builds llama.cpp so that AMX can be used; empty if it is used."""
        return "" if self.used else kernels.build_command()


@cache
def settled() -> Amx | None:
    """Check AMX once per process, and remove it from llama.cpp's list if it does not work. Must be called
    before weights are loaded. None if the processor or the build has no AMX.
    """
    if not offers_amx():
        return None
    found = checked(Path(ggml.libggml._name).parent)
    if not found.used:
        without_amx()
    return found


def in_use() -> bool:
    """Whether llama.cpp may compute with AMX in this process."""
    found = settled()
    return found is not None and found.used and not _state.taken_off


def admit(path: Path) -> bool:
    """Whether this file's weights may be packed at all. Must be called before each load.

    A model that is not suited for AMX removes it from the list for all later models. If other models already
    use AMX by then, the model's own weights are not packed.
    """
    with _state.lock:
        if not in_use():
            return True
        if suits(path):
            _state.kept = True
            return True
        if not _state.kept:
            without_amx()
            _state.taken_off = True
        return _state.taken_off


def suits(path: Path) -> bool:
    """Whether llama.cpp's AMX kernels can compute this model. True for an unreadable file: loading it reports
    the error.
    """
    try:
        model = read_gguf(path)
    except ForedraftError:
        return True
    # Stacks of experts have their own kernels, none of which use AMX.
    flat = all(len(tensor.shape) <= 2 or "_exps" in tensor.name for tensor in model.tensors)
    return model.architecture in ARCHITECTURES and flat


class _State:
    """State of AMX in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept = False
        self.taken_off = False


_state = _State()


def checked(libraries: Path) -> Amx:
    """Check llama.cpp's libraries in this folder. Never raises."""
    command = [sys.executable, "-I", amx_check.__file__, str(libraries)]
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _unused(f"its check did not finish within {SECONDS:.0f} s")
    except OSError as error:
        return _unused(f"it could not be checked: {error}")
    right = done.stdout.decode("ascii", "replace").split()
    wrong = [name for name in amx_check.TYPES if name not in right]
    if done.returncode < 0:
        at = wrong[0] if wrong else "its end"
        return _unused(f"its check was killed by signal {-done.returncode} at {at}")
    if done.returncode:
        return _unused(f"its check failed (exit code {done.returncode})")
    if wrong:
        return _unused(f"its products are not exact with {', '.join(wrong)}")
    return Amx(used=True, note="its products are exact with every type of weights")


def _unused(note: str) -> Amx:
    return Amx(used=False, note=note)
