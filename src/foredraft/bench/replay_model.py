"""A model that answers as recorded, and takes as long as a cost curve says.

It is a `Model` like any other, so a replay runs the engine itself: its rounds, drafters, planner and
scheduler, at the speed of Python. Time is virtual: `clock` is moved by every forward, and by what attempts to
draft are charged (`charge`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from foredraft.bench.attempt_cost import AttemptCost
from foredraft.bench.curves import Curve
from foredraft.bench.trace import Trace, TraceSet
from foredraft.errors import BackendError, RequestError, UnsupportedModelError
from foredraft.protocols import Head, Vision
from foredraft.templates.control_texts import NO_CONTROL_TEXTS, Span
from foredraft.templates.traits import TemplateTraits
from foredraft.types import (
    MAX_DRAFT_TOKENS,
    Capabilities,
    Features,
    Logits,
    Message,
    ModelInfo,
    Rollback,
    Rows,
)

LIKELIEST = 8.0
"""Logit of the recorded token; all others are at 0."""

MAX_ROWS = MAX_DRAFT_TOKENS + 1
MAX_BATCH = 4096

_LOST = 1 << 30
"""Stands for more tokens than any answer has, where the text is not the recorded one."""


class ReplayTokenizer:
    """Holds the tokens that end an answer; a replay has no text."""

    chat_template: str | None = None
    template_traits = TemplateTraits()
    control_texts = NO_CONTROL_TEXTS
    infill_tokens: tuple[int, int, int] | None = None

    def __init__(self, vocab_size: int, end_tokens: Sequence[int]) -> None:
        self.vocab_size = vocab_size
        self.end_tokens = frozenset(end_tokens)

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:  # noqa: ARG002
        if text:
            raise RequestError("A replay takes token ids, not text.")
        return []

    def encode_rendered(self, text: str, literal: Sequence[Span], *, begins: bool = True) -> list[int]:  # noqa: ARG002
        return self.encode(text, special=True, add_bos=True)

    def token_bytes(self, token: int) -> bytes:  # noqa: ARG002
        return b""

    def apply_chat_template(
        self,
        messages: Sequence[Message],  # noqa: ARG002
        *,
        add_generation_prompt: bool = True,  # noqa: ARG002
        **variables: object,  # noqa: ARG002
    ) -> str:
        raise RequestError("A replay takes token ids, not messages.")


class ReplayModel:
    """Answers each prompt of a trace set with its recorded output.

    A row gets the recorded next token if all rows before it, of a tree those on its path, were as recorded;
    what follows a wrong draft token is not known, and no rule ever reads it. `trees`: whether drafts may be
    trees. A decoding forward of n rows takes V(n) of `curve`, and if it is not `ragged` (`Capabilities`) what
    one request has more than a row is a pass of its own, unless filling all up is cheaper; prompts take no
    time. `overhead_ms` is added to every forward: what the engine does between two forwards.
    """

    def __init__(
        self,
        traces: TraceSet,
        curve: Curve,
        *,
        sequences: int = 1,
        overhead_ms: float = 0.0,
        trees: bool = False,
        ragged: bool = True,
    ) -> None:
        self._curve = curve
        self._overhead_ms = overhead_ms
        self._by_prompt = {trace.prompt: trace for trace in traces.traces}
        self._prompt_lengths = {len(prompt) for prompt in self._by_prompt}
        self.longest_answer = max((len(trace.output) for trace in traces.traces), default=0)
        """In tokens."""
        longest = max((len(trace.prompt) + len(trace.output) for trace in traces.traces), default=0)
        self.tokenizer = ReplayTokenizer(traces.vocab_size, traces.end_tokens)
        self.info = ModelInfo(
            name=f"replay of {traces.model}",
            path="",
            architecture="replay",
            file_hash="",
            vocab_size=traces.vocab_size,
            vocab_hash=traces.vocab_hash,
            context_length=longest + MAX_ROWS,
            trained_context=longest,
            parameters=0,
            size_bytes=0,
            backend="replay",
            device=curve.name,
        )
        self.capabilities = Capabilities(
            rollback=Rollback.TRUNCATE,
            batch_invariant=True,
            invariance_note="the recorded tokens",
            max_rows=MAX_ROWS,
            max_batch=MAX_BATCH,
            sequences=sequences,
            trees=trees,
            ragged=ragged,
        )
        self._cells: dict[int, list[int]] = {}
        self._following: dict[int, Trace] = {}
        self._only: Trace | None = None
        self._logits = np.zeros((0, traces.vocab_size), np.float32)
        self._set: list[tuple[int, int]] = []
        self._rows = 1
        self.seconds = 0.0

    def clock(self) -> float:
        """Virtual seconds since the replay began."""
        return self.seconds

    @property
    def attempts(self) -> AttemptCost:
        """What attempts to draft cost beside these forwards."""
        return self._curve.attempts

    def answer_with(self, trace: Trace, curve: Curve | None = None) -> None:
        """From now on only this trace is answered: in use the same prompt comes more than once, and a prompt
        may begin as another one with its answer. Forwards take what `curve` says, if there is one.
        """
        self._only = trace
        self._curve = curve or self._curve

    def _recorded(self, cells: Sequence[int]) -> Trace | None:
        """The trace whose prompt this is."""
        if self._only is not None:
            return self._only if self._only.prompt == tuple(cells) else None
        return self._by_prompt.get(tuple(cells)) if len(cells) in self._prompt_lengths else None

    @property
    def vision(self) -> Vision | None:
        return None

    @property
    def adapters(self) -> Mapping[str, str]:
        return {}

    def adapt(self, seq: int, adapter: str) -> None:  # noqa: ARG002
        raise BackendError("A recording has no adapters.")

    @property
    def idle_threads(self) -> int:
        return 0

    def forward(self, batch: Sequence[Rows]) -> Logits:
        wanted = sum(rows.logits for rows in batch)
        logits = self._blank(wanted)
        decoding: list[int] = []
        row = 0
        for rows in batch:
            cells = self._cells.setdefault(rows.seq, [])
            if rows.start != len(cells):
                raise BackendError(f"rows start at {rows.start}, the cache ends at {len(cells)}")
            cells.extend(rows.tokens)
            if not rows.logits:
                continue  # a part of a prompt
            if found := self._recorded(cells):
                self._following[rows.seq] = found
            else:
                decoding.append(len(rows.tokens))
            self._write(logits[row : row + rows.logits], rows, row)
            row += rows.logits
        if decoding:
            self.seconds += (self._curve.v1_ms * self._took(decoding) + self._overhead_ms) / 1e3
            self._rows = sum(decoding)
        return logits[:wanted]

    def _took(self, decoding: Sequence[int]) -> float:
        """The cost of a forward in V(1); `decoding`: the rows of each request."""
        at_once = self._curve.after(self._rows, sum(decoding))
        if self.capabilities.ragged or len(decoding) == 1:
            return at_once
        longer = [count - 1 for count in decoding if count > 1]
        passes = self._curve.ratio(len(decoding)) + sum(map(self._curve.ratio, longer))
        even = self._curve.ratio(len(decoding) * max(decoding))
        return min(passes, even) + at_once - self._curve.ratio(sum(decoding))

    def _blank(self, rows: int) -> Logits:
        for at, token in self._set:
            self._logits[at, token] = 0.0
        self._set.clear()
        if rows > len(self._logits):
            self._logits = np.zeros((rows, self.info.vocab_size), np.float32)
        return self._logits

    def _write(self, logits: Logits, rows: Rows, first: int) -> None:
        """Logits of the last rows, of shape (rows that want some, vocabulary). `first` is the place of the
        first among all of this forward's.
        """
        trace = self._following.get(rows.seq)
        if trace is None:
            return
        cells, output, begin = self._cells[rows.seq], trace.output, len(trace.prompt)
        at = rows.start - begin
        before = at if at <= 0 or tuple(cells[begin : rows.start]) == output[:at] else _LOST
        reached: list[int] = []  # by each row: recorded tokens up to and with it
        silent = len(rows.tokens) - rows.logits
        for i, token in enumerate(rows.tokens):
            parent = i - 1 if rows.parents is None else rows.parents[i]
            at = before if parent < 0 else reached[parent]
            right = at < 0 or (at < len(output) and token == output[at])
            reached.append(at + 1 if right else _LOST)
            if i >= silent and 0 <= reached[i] < len(output):
                answer = output[reached[i]]
                logits[i - silent, answer] = LIKELIEST
                self._set.append((first + i - silent, answer))

    def features(self, rows: Sequence[int] | None = None) -> Features:  # noqa: ARG002
        raise BackendError("The model was loaded without features.")

    def load_head(self, path: Path | None, *, sequences: int) -> Head:  # noqa: ARG002
        raise UnsupportedModelError(f"{self.info.name} cannot be used with a head here.")

    def length(self, seq: int) -> int:
        return len(self._cells.get(seq, ()))

    def to_recompute(self, seq: int) -> int:  # noqa: ARG002
        return 0

    def truncate(self, seq: int, length: int) -> None:
        cells = self._cells.get(seq)
        if cells is not None:
            del cells[length:]

    def reachable(self, seq: int, length: int) -> int:
        return min(length, self.length(seq))

    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None:
        rows = self._cells[seq][start:]
        self._cells[seq][start:] = [rows[i] for i in path]

    def fork(self, src: int, dst: int, length: int) -> None:
        self._cells[dst] = self._cells[src][:length]

    def snapshot(self, seq: int) -> object:
        return list(self._cells.get(seq, ()))

    def restore(self, seq: int, snapshot: object) -> None:
        assert isinstance(snapshot, list)
        self._cells[seq] = list(snapshot)

    def release(self, seq: int) -> None:
        self._cells.pop(seq, None)
        self._following.pop(seq, None)

    def close(self) -> None:
        self._cells.clear()
