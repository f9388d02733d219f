"""Recording traces: real answers as token ids, from which a replay needs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from foredraft.bench.trace import Trace, TraceSet, read_traces, write_traces
from foredraft.bench.trace_file import TraceFile, check_vocabulary
from foredraft.engine.engine import Engine
from foredraft.types import Completion


def as_trace(
    prompt: Sequence[int],
    completion: Completion,
    *,
    name: str,
    category: str = "",
    prediction: Sequence[int] = (),
) -> Trace:
    """The trace of a completion."""
    return Trace(name, category, tuple(prompt), completion.tokens, tuple(prediction))


def trace_set(engine: Engine, traces: Sequence[Trace]) -> TraceSet:
    """Traces recorded with this engine's model."""
    info = engine.model.info
    return TraceSet(
        info.name, info.vocab_size, info.vocab_hash, tuple(engine.model.tokenizer.end_tokens), traces
    )


def append_traces(path: Path, added: TraceSet) -> None:
    """Write traces to a file that may hold earlier ones of the same model's vocabulary. It is compressed if
    its name ends in .gz.

    Raises ConfigError for a file that is not one, or holds another model's tokens; OSError.
    """
    if path.suffix != ".gz":
        with TraceFile(path, added) as file:
            for trace in added.traces:
                file.append(trace)
        return
    if path.exists() and path.stat().st_size:
        present = read_traces(path)
        check_vocabulary(path, present.model, present.vocab_hash, added)
        added = replace(present, traces=(*present.traces, *added.traces))
    write_traces(path, added)
