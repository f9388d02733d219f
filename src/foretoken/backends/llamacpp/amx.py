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

import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llama_cpp._ggml as ggml

from foretoken.backends.llamacpp import amx_check
from foretoken.backends.llamacpp.buffer_types import offers_amx, without_amx

TILES = Path(__file__).with_name("amx_tiles.h")
"""Mends GCC 12's fault, where llama.cpp is compiled with it."""

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
        flags = f"-include {shlex.quote(str(TILES))}"
        build = "pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python"
        return "" if self.used else f'CXXFLAGS="{flags}" {build}'


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
