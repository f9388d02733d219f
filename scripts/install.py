"""Install Foredraft with an extra into this interpreter's environment, and show that it is alive.

llama-cpp-python has no binary wheel: pip compiles llama.cpp, which takes minutes and is silent. This says so
and shows the time and how far the compiler is. pip keeps the wheel, so it happens once for a machine. For a
processor that Foredraft has kernels for they are compiled in (`native/kernels.h`); the wheel is kept apart.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent
TICK_SECONDS = 5
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")

LLAMA_CPP = "llama-cpp-python==0.3.36"
"""What is installed here; users of the package may have newer ones."""

CONSTRAINTS = ROOT / "scripts/constraints.txt"
"""The versions that tests are known to pass with: what `dev` is installed with."""

KERNELS = ROOT / "src/foredraft/backends/llamacpp/native/kernels.h"
INSTRUCTIONS = {"avx2", "fma", "f16c"}
"""What the kernels need at least, by Linux's names."""

CPU_INFO = Path("/proc/cpuinfo")


def main() -> int:
    """Install `foredraft[EXTRA]` in editable mode; returns pip's exit code."""
    extra = sys.argv[1] if len(sys.argv) > 1 else "demo"
    wanted = ["-e", f"{ROOT}[{extra}]", LLAMA_CPP, *(("-c", str(CONSTRAINTS)) if extra == "dev" else ())]
    if find_spec("llama_cpp") is None:
        print(
            "Installing Foredraft. The first time, llama.cpp is compiled: about 5 to 10 minutes on 2 cores."
        )
        if (wheels := wheels_with_kernels()) and with_kernels(wheels):
            wanted = ["--find-links", str(wheels), *wanted]
    else:
        print("Installing Foredraft.")
    return run([*PIP, "install", *wanted])


def with_kernels(wheels: Path) -> bool:
    """Whether there is a wheel of llama.cpp with Foredraft's kernels in this folder, after compiling it where
    there is none. A compiler that cannot is no reason to go without llama.cpp.
    """
    if any(wheels.glob("*.whl")):
        return True
    flags = f"{os.environ.get('CXXFLAGS', '')} -include {shlex.quote(str(KERNELS))}".strip()
    compiled = [*PIP, "wheel", "--no-deps", "--no-cache-dir", "-w", str(wheels), LLAMA_CPP]
    if run(compiled, CXXFLAGS=flags):
        print("Compiling with Foredraft's kernels failed. Once more without: verifying drafts takes longer.")
        return False
    return True


def wheels_with_kernels() -> Path | None:
    """The folder of wheels compiled for this processor by this compiler; None where there are no kernels."""
    try:
        text = CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    if not set(flags.split()) >= INSTRUCTIONS:
        return None
    headers = [header.read_text(encoding="utf-8") for header in sorted(KERNELS.parent.glob("*.h"))]
    identity = "|".join((LLAMA_CPP, *headers, flags, compiler(), platform.python_version()))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "foredraft" / "wheels" / hashlib.sha256(identity.encode()).hexdigest()[:16]


def compiler() -> str:
    """What the C++ compiler calls itself; nothing where there is none."""
    try:
        command = [os.environ.get("CXX", "c++"), "--version"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603
    except OSError:
        return ""


def run(command: list[str], **variables: str) -> int:
    """Run pip, with a line that shows what it is doing; its exit code. What it said is shown if it failed."""
    with tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False) as log:
        process = subprocess.Popen(  # noqa: S603 - our own words
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | variables
        )
        done = threading.Event()
        watcher = threading.Thread(target=watch, args=(Path(log.name), done), daemon=True)
        watcher.start()
        code = process.wait()
        done.set()
        watcher.join()
    text = Path(log.name).read_text(errors="replace")
    if code:
        print(text[-4000:])
        print("It failed. A C and C++ compiler is needed (Debian: apt install build-essential).")
    Path(log.name).unlink()
    return code


def watch(log: Path, done: threading.Event) -> None:
    """Print what pip is doing and for how long, on one line where there is a terminal."""
    began = time.monotonic()
    live = sys.stdout.isatty()
    last = ""
    while not done.wait(TICK_SECONDS):
        step = current_step(log.read_text(errors="replace"))
        elapsed = time.monotonic() - began
        line = f"  {int(elapsed // 60)}:{int(elapsed % 60):02d}  {step}"
        if live:
            print(f"\r{line[:100]:<100}", end="", flush=True)
        elif step != last or int(elapsed) % 60 < TICK_SECONDS:
            print(line, flush=True)
        last = step
    if live:
        print("\r" + " " * 100 + "\r", end="")
    print(f"  done in {time.monotonic() - began:.0f} s")


def current_step(text: str) -> str:
    """The step that pip's log ends with, in words."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    if not lines:
        return "starting"
    if "Building wheel for llama-cpp-python" in lines[-1]:
        return "compiling llama.cpp (once; the result is kept)"
    return lines[-1][:80]


if __name__ == "__main__":
    sys.exit(main())
