"""Draw docs/assets/run.svg: what `foredraft run` shows on a terminal, from a real run of the default model.

The command runs in a subprocess, as a user would start it, and its coloured output becomes an SVG. The text
is the same every time. The times are this machine's, and so are the colours: what gets drafted depends on
what the planner measures.

    python scripts/picture.py [OUT.svg]
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 112
ROOT = Path(__file__).parents[1]
PIPED = ROOT / "examples" / "shapes.txt"
QUESTION = "Write the same program again."
SHOWN = f'foredraft run --temp 0 -n 100 --compare "{QUESTION}" < examples/shapes.txt'
COMMAND = ["run", "--temp", "0", "-n", "100", "--compare", "--no-remember", QUESTION]

# Coloured although it is no terminal, but without a spinner that overwrites itself.
ENVIRONMENT = {"FORCE_COLOR": "1", "TTY_INTERACTIVE": "0", "COLUMNS": str(COLUMNS)}
_CONTROL = re.compile(r"\x1b\[\?\d+[hl]|\r")
_FONT_FACE = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)


def run_foredraft() -> str:
    """What the command writes to both streams, in order. Raises CalledProcessError if it fails."""
    tool = Path(sys.executable).with_name("foredraft")
    with PIPED.open("rb") as piped:
        done = subprocess.run(  # noqa: S603 - our own words
            [tool, *COMMAND],
            env=os.environ | ENVIRONMENT,
            stdin=piped,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=True,
            text=True,
        )
    return _CONTROL.sub("", done.stdout)


def draw(output: str) -> str:
    """The SVG of a terminal showing the command and its output."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "dim"), SHOWN))
    console.print(Text.from_ansi(output.rstrip()))
    # The reader's own monospace font will do: no picture in a README should fetch anything.
    return _FONT_FACE.sub("", console.export_svg(title="foredraft"))


def main() -> int:
    """Draw the picture; returns the exit code."""
    default = ROOT / "docs" / "assets" / "run.svg"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(run_foredraft()), encoding="utf-8")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
