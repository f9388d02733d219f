"""Whether llama.cpp may lay weights out for AMX: where its products come out right, and only there.

On a processor with AMX, llama.cpp rearranges quantised weights for AMX's tiles, with which several rows
cost little more than one. But GCC 12 takes the instruction that configures the tiles to read 8 bytes where
it reads 64, and leaves out the stores of the other 56 (llama.cpp's issue 20824): whatever then lies on the
stack is loaded, and the first forward ends the program. That can neither be caught nor told beforehand, so
another process tries (`amx_check`, 0.2 s), with every type of weights. All of them must come out right,
since llama.cpp goes by one list for all models of a process. Otherwise AMX is taken off that list, and
weights are laid out for AVX-512 or AVX2.
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
"""Those that multiply a matrix of weights by a matrix of rows and nothing else. Where rows come sequence by
sequence (Mamba, LFM2, Qwen3.5) or weights as a stack (DeepSeek), llama.cpp's AMX kernels read past them.
"""

SECONDS = 20.0
"""What the check may take, on a machine as busy as can be. It takes 0.2 on an idle one."""


@dataclass(frozen=True, slots=True)
class Amx:
    """Whether AMX is used, and what the check has seen."""

    used: bool
    note: str

    @property
    def remedy(self) -> str:
        """The command that builds llama.cpp so that AMX can be used; empty where it is."""
        return "" if self.used else kernels.build_command()


@cache
def settled() -> Amx | None:
    """Check AMX, once in a process, and take it off llama.cpp's list if it does not work. To be called before
    weights are loaded. None where there is nothing to settle: the processor or the build has no AMX.
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
    """Whether the weights of this file may lie in other than plain buffers. To be asked before each load.

    Weights that AMX does not suit take it off the list for all models after them. If others lie there by
    then, they are laid out plainly themselves.
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
    """Whether llama.cpp's AMX kernels compute what this model needs. True of what cannot be read: loading it
    will say why.
    """
    try:
        model = read_gguf(path)
    except ForedraftError:
        return True
    # Stacks of experts have kernels of their own, and none of AMX.
    flat = all(len(tensor.shape) <= 2 or "_exps" in tensor.name for tensor in model.tensors)
    return model.architecture in ARCHITECTURES and flat


class _State:
    """What became of AMX in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept = False
        self.taken_off = False


_state = _State()


def checked(libraries: Path) -> Amx:
    """What the check finds out about llama.cpp's libraries in this folder. Raises nothing."""
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
        return _unused(f"its check did not end within {SECONDS:.0f} s")
    except OSError as error:
        return _unused(f"it could not be checked: {error}")
    right = done.stdout.decode("ascii", "replace").split()
    wrong = [name for name in amx_check.TYPES if name not in right]
    if done.returncode < 0:
        at = wrong[0] if wrong else "its end"
        return _unused(f"its check was ended by signal {-done.returncode} at {at}")
    if done.returncode:
        return _unused(f"its check failed (exit code {done.returncode})")
    if wrong:
        return _unused(f"its products are not exact with {', '.join(wrong)}")
    return Amx(used=True, note="its products are exact with every type of weights")


def _unused(note: str) -> Amx:
    return Amx(used=False, note=note)
