"""Install Foretoken with an extra into this interpreter's environment, and show that it is alive.

llama-cpp-python has no binary wheel: pip compiles llama.cpp, which takes minutes and is silent. This says so
and shows the time and how far the compiler is. pip keeps the wheel, so it happens once for a machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path

TICK_SECONDS = 5

PINNED = {"dev": ("torch==2.13.0",)}
"""What an extra is installed with besides: the torch that tests are known to pass with."""


def main() -> int:
    """Install `foretoken[EXTRA]` in editable mode; returns pip's exit code."""
    extra = sys.argv[1] if len(sys.argv) > 1 else "demo"
    if find_spec("llama_cpp") is None:
        print(
            "Installing Foretoken. The first time, llama.cpp is compiled: about 5 to 10 minutes on 2 cores."
        )
    else:
        print("Installing Foretoken.")
    root = Path(__file__).parent.parent
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "-e",
        f"{root}[{extra}]",
        *PINNED.get(extra, ()),
    ]
    with tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False) as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603 - our own words
        done = threading.Event()
        watcher = threading.Thread(target=watch, args=(Path(log.name), done), daemon=True)
        watcher.start()
        code = process.wait()
        done.set()
        watcher.join()
    text = Path(log.name).read_text(errors="replace")
    if code:
        print(text[-4000:])
        print("Installation failed. A C and C++ compiler is needed (Debian: apt install build-essential).")
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
        return "compiling llama.cpp (once; pip keeps the result)"
    return lines[-1][:80]


if __name__ == "__main__":
    sys.exit(main())
