"""Traces: recorded real outputs, from which any policy can be replayed without the model.

One JSON object a line: `id`, `category`, `prompt` and `output` (token ids), and `prediction` (token ids of
the text the client expected) where there was one. Other fields are ignored. The first line is a header:
format, model and vocabulary. So a trace is added by writing a line, and a line that was cut short by a crash
is the last one.
"""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from foredraft.errors import ConfigError
from foredraft.files import write_output

FORMAT = "foredraft-traces"
VERSION = 1

SHIPPED = "traces.jsonl.gz"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trace:
    """One recorded request. `output` begins with the first token after the prompt and ends with the last one
    that was generated, an end-of-sequence token included.
    """

    id: str
    category: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    prediction: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceSet:
    """Traces of one model. `vocab_hash` identifies the tokenizer the ids belong to."""

    model: str
    vocab_size: int
    vocab_hash: str
    end_tokens: tuple[int, ...] = ()
    traces: Sequence[Trace] = field(default_factory=tuple)


def write_traces(path: Path, traces: TraceSet) -> None:
    """Write a trace file, compressed if its name ends in .gz; only the user can read it. Raises OSError."""
    content = b"".join([header_line(traces), *map(trace_line, traces.traces)])
    # Without a time stamp the same traces are the same bytes.
    write_output(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content, mode=0o600)


def header_line(traces: TraceSet) -> bytes:
    """The first line of a file."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "model": traces.model,
        "vocab_size": traces.vocab_size,
        "vocab_hash": traces.vocab_hash,
        "end_tokens": list(traces.end_tokens),
    }
    return json.dumps(header).encode() + b"\n"


def trace_line(trace: Trace) -> bytes:
    """A further line."""
    return json.dumps(_as_row(trace)).encode() + b"\n"


def read_traces(path: Path) -> TraceSet:
    """Read a trace file. Raises ConfigError that names the file, the line and what is wrong with it.

    A last line without an end, as a crash leaves one, is left out with a warning.
    """
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode()
    except FileNotFoundError:
        raise ConfigError(
            f"There is no trace file {path}.", hint="Record one with 'foredraft bench --record FILE'."
        ) from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"The trace file {path} cannot be read: {error}.") from None
    lines = text.splitlines()
    if not lines:
        raise ConfigError(f"{path} is empty.", hint="Record answers with 'foredraft bench --record FILE'.")
    header = checked_header(path, lines[0])
    if len(lines) > 1 and not text.endswith("\n") and not _is_json(lines[-1]):
        _log.warning("%s, line %d: cut short, left out.", path, len(lines))
        lines.pop()
    try:
        vocab_size = int(header["vocab_size"])
        traces = [
            _from_row(path, number, _parsed(path, number, line), vocab_size)
            for number, line in enumerate(lines[1:], 2)
            if line.strip()
        ]
        return TraceSet(
            str(header["model"]), vocab_size, str(header["vocab_hash"]), tuple(header["end_tokens"]), traces
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: the header lacks {error}.") from None


def checked_header(path: Path, line: str) -> dict[str, Any]:
    """The first line's JSON object. Raises ConfigError if it is not that of a trace file."""
    header = _parsed(path, 1, line)
    if header.get("format") != FORMAT:
        raise ConfigError(f"{path} is not a trace file.", hint=f"Its first line must say {FORMAT!r}.")
    if header.get("version") != VERSION:
        raise ConfigError(
            f"{path} has version {header.get('version')!r} of the trace format; this reads {VERSION}.",
            hint="Record it again.",
        )
    return header


def shipped_traces() -> TraceSet:
    """Recorded answers of the default model to the prompts that ship: `foredraft bench --record FILE
    --temperature 0.7`, since at temperature 0 some of a small model's loop until their limit.
    """
    with as_file(files("foredraft.bench").joinpath(SHIPPED)) as path:
        return read_traces(path)


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True


def _as_row(trace: Trace) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": trace.id,
        "category": trace.category,
        "prompt": trace.prompt,
        "output": trace.output,
    }
    if trace.prediction:
        row["prediction"] = trace.prediction
    return row


def _parsed(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {number}: this is not JSON ({error.msg}).") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{path}, line {number}: a JSON object is expected.")
    return row


def _from_row(path: Path, number: int, row: dict[str, Any], vocab_size: int) -> Trace:
    def tokens(key: str, value: object) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(
            isinstance(token, int) and 0 <= token < vocab_size for token in value
        ):
            raise ConfigError(
                f"{path}, line {number}: {key!r} is not a list of token ids below {vocab_size}."
            )
        return tuple(value)

    for key in ("id", "prompt", "output"):
        if key not in row:
            raise ConfigError(f"{path}, line {number}: {key!r} is missing.")
    return Trace(
        str(row["id"]),
        str(row.get("category", "")),
        tokens("prompt", row["prompt"]),
        tokens("output", row["output"]),
        tokens("prediction", row.get("prediction", [])),
    )
