"""Running the `foredraft` command in this process."""

from __future__ import annotations

import io
import sys
from typing import NamedTuple

import pytest

from foredraft.cli import run_command


class Ran(NamedTuple):
    """What a command left: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str


class Command:
    """`command(ARGUMENT, …, stdin=b"…")` runs it without a terminal."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object, stdin: bytes = b"") -> Ran:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
            self._capsys.readouterr()
            code = run_command([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        return Ran(code, out, err)
