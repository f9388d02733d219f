"""Public test doubles: a model without weights, a scripted drafter, and the lossless check.

Foredraft's own tests use them; tests of plugins can too (see docs/write-a-drafter.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from foredraft.errors import BackendError, OutOfKVError, RequestError
from foredraft.protocols import Drafter, DrafterContext, GrammarState, Model, Planner, RequestView
from foredraft.templates.control_texts import NO_CONTROL_TEXTS, Span
from foredraft.templates.traits import TemplateTraits
from foredraft.types import (
    Capabilities,
    Constraint,
    Draft,
    DraftLimit,
    Logits,
    Message,
    ModelInfo,
    Outcome,
    Rollback,
    Rows,
    SamplingParams,
)

LogitsFunction = Callable[[Sequence[int]], Logits]
"""Logits of shape (vocabulary,) for the token after a prefix."""


class FakeTokenizer:
    """Bytes 0…255, end of text = 256, a control token = 257; or a smaller alphabet of letters.

    With `vocab_size` < 258 token t is a letter and only the last token ends the text; with more, the tokens
    from 258 on are written `<t>`.
    """

    chat_template: str | None = None
    template_traits = TemplateTraits()
    control_texts = NO_CONTROL_TEXTS
    infill_tokens: tuple[int, int, int] | None = None

    def __init__(self, vocab_size: int = 258) -> None:
        self.vocab_size = vocab_size
        self._bytewise = vocab_size >= 258
        self.end_tokens = frozenset({256 if self._bytewise else vocab_size - 1})

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:  # noqa: ARG002
        if self._bytewise:
            return list(text.encode())
        return [(ord(letter) - ord("a")) % self.vocab_size for letter in text]

    def encode_rendered(self, text: str, literal: Sequence[Span]) -> list[int]:  # noqa: ARG002
        return self.encode(text, special=True, add_bos=True)

    def token_bytes(self, token: int) -> bytes:
        if token in self.end_tokens or token == 257:
            return b""
        if not self._bytewise:
            return bytes([ord("a") + token % 26])
        return bytes([token]) if token < 256 else f"<{token}>".encode()

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        **variables: object,  # noqa: ARG002
    ) -> str:
        if not messages:
            raise RequestError("There are no messages.")
        turns = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return turns + ("assistant: " if add_generation_prompt else "")


def markov_logits(vocab_size: int, *, order: int = 2, seed: int = 0, scale: float = 2.0) -> LogitsFunction:
    """Logits of a random Markov chain over the last `order` tokens. Its greedy text soon repeats itself."""
    cached: dict[tuple[int, ...], Logits] = {}

    def logits(prefix: Sequence[int]) -> Logits:
        key = tuple(prefix[-order:])
        if key not in cached:
            rng = np.random.default_rng([seed, *key])
            cached[key] = (scale * rng.standard_normal(vocab_size)).astype(np.float32)
        return cached[key]

    return logits


class FakeModel:
    """A Model whose logits are a function of the prefix: exact, instant, and strict about the KV cache.

    It raises where a real backend would misbehave silently: rows that do not start at the end of the cache,
    more rows than `max_rows`, a sequence out of range. `forwards` records every batch. `kv_cells` limits the
    total tokens of all sequences; with None only each sequence's context is limited.
    """

    def __init__(
        self,
        vocab_size: int = 258,
        *,
        logits: LogitsFunction | None = None,
        context_length: int = 4096,
        sequences: int = 4,
        max_rows: int = 64,
        max_batch: int = 512,
        trees: bool = True,
        kv_cells: int | None = None,
        name: str = "fake",
    ) -> None:
        self.tokenizer = FakeTokenizer(vocab_size)
        self._kv_cells = kv_cells
        self._logits = logits or markov_logits(vocab_size)
        self.info = ModelInfo(
            name=name,
            path="",
            architecture="markov",
            file_hash=name,
            vocab_size=vocab_size,
            vocab_hash=f"fake-{vocab_size}",
            context_length=context_length,
            trained_context=context_length,
            parameters=0,
            size_bytes=0,
            backend="fake",
            device="cpu",
        )
        self.capabilities = Capabilities(
            rollback=Rollback.TRUNCATE,
            batch_invariant=True,
            invariance_note="logits are a function of the prefix",
            max_rows=max_rows,
            max_batch=max_batch,
            sequences=sequences,
            trees=trees,
            snapshot_key=f"{name}|{vocab_size}|{context_length}",
        )
        self._cache: dict[int, list[int]] = {}
        self._least: dict[int, int] = {}
        """Of a sequence that was copied: the fewest cells that it can be cut to (`Capabilities.window`)."""
        self._tree: dict[int, tuple[list[int], list[list[int]]]] = {}
        self.forwards: list[tuple[Rows, ...]] = []
        self.closed = False

    def clock(self) -> float:
        """Virtual time in seconds: every forward takes 10 ms whatever its size, everything else none. The
        decisions of an `Engine(model, clock=model.clock)` are the same on every machine.
        """
        return 0.01 * len(self.forwards)

    def with_capabilities(self, **changes: object) -> FakeModel:
        """The same model with other capabilities (for example `batch_invariant=False`)."""
        self.capabilities = replace(self.capabilities, **changes)  # type: ignore[arg-type]
        return self

    @property
    def idle_threads(self) -> int:
        return 0

    def forward(self, batch: Sequence[Rows]) -> Logits:
        self.forwards.append(tuple(batch))
        if sum(len(rows.tokens) for rows in batch) > self.capabilities.max_batch:
            raise BackendError("more rows than max_batch")
        for rows in batch:
            self._check(rows)
        self._check_cells(sum(len(rows.tokens) for rows in batch))
        wanted: list[Logits] = []
        for rows in batch:
            wanted.extend(self._append(rows))
        return np.stack(wanted) if wanted else np.empty((0, self.info.vocab_size), np.float32)

    def _check(self, rows: Rows) -> None:
        if not 0 <= rows.seq < self.capabilities.sequences:
            raise BackendError(f"no sequence {rows.seq}")
        if rows.start != self.length(rows.seq):
            raise BackendError(f"rows start at {rows.start}, the cache ends at {self.length(rows.seq)}")
        if rows.start + len(rows.tokens) > self.info.context_length:
            raise OutOfKVError("context full")
        if rows.logits > self.capabilities.max_rows:
            raise BackendError("more rows than max_rows")

    def _check_cells(self, more: int) -> None:
        if self._kv_cells is not None and self.cells + more > self._kv_cells:
            raise OutOfKVError("the KV cache is full")

    def _append(self, rows: Rows) -> list[Logits]:
        cached = self._cache.setdefault(rows.seq, [])
        paths: list[list[int]] = []
        for i, token in enumerate(rows.tokens):
            parent = i - 1 if rows.parents is None else rows.parents[i]
            paths.append([*(paths[parent] if parent >= 0 else []), token])
        first = len(rows.tokens) - rows.logits
        prefix = list(cached)
        if rows.parents is not None:
            self._tree[rows.seq] = (prefix, paths)
        cached.extend(rows.tokens)
        return [self._logits(prefix + path) for path in paths[first:]]

    def length(self, seq: int) -> int:
        return len(self._cache.get(seq, ()))

    def to_recompute(self, seq: int) -> int:  # noqa: ARG002
        return 0

    @property
    def cells(self) -> int:
        """Total KV cells of all sequences."""
        return sum(len(cached) for cached in self._cache.values())

    def tokens(self, seq: int) -> list[int]:
        """The tokens in the sequence's cache."""
        return list(self._cache.get(seq, ()))

    def truncate(self, seq: int, length: int) -> None:
        if length > self.length(seq):
            raise BackendError(f"cannot truncate {self.length(seq)} cells to {length}")
        if 0 < length < self._least.get(seq, 0):
            raise BackendError(f"cannot truncate to {length} cells: a window passed them")
        if seq in self._cache:
            del self._cache[seq][length:]

    def reachable(self, seq: int, length: int) -> int:
        held = self.length(seq)
        reached = min(length, held)
        possible = self.capabilities.rollback is Rollback.TRUNCATE or length >= held
        return reached if possible and reached >= self._least.get(seq, 0) else 0

    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None:
        rows = self._cache[seq][start:]
        self._cache[seq][start:] = [rows[i] for i in path]

    def fork(self, src: int, dst: int, length: int) -> None:
        if length > self.length(src):
            raise BackendError(f"cannot fork {length} of {self.length(src)} cells")
        if self.capabilities.window and not self.capabilities.copy_reaches(self.length(src), length):
            raise BackendError(
                f"cannot fork {length} of {self.length(src)} cells: the window has passed them"
            )
        self._check_cells(length - self.length(dst))
        self._cache[dst] = self.tokens(src)[:length]
        self._note_least(dst)

    def snapshot(self, seq: int) -> bytearray:
        return bytearray(np.asarray(self.tokens(seq), "<i4").tobytes())

    def restore(self, seq: int, snapshot: object) -> None:
        assert isinstance(snapshot, bytearray)
        self.release(seq)
        if len(snapshot) % 4:
            raise BackendError("not a snapshot of a FakeModel")
        tokens: list[int] = np.frombuffer(snapshot, "<i4").tolist()
        self._check_cells(len(tokens))
        self._cache[seq] = tokens
        self._note_least(seq)

    def _note_least(self, seq: int) -> None:
        """A copy has what its next token sees, and no cells before."""
        held, window = self.length(seq), self.capabilities.window
        self._least[seq] = held - 1 if window and held > window else 0

    def release(self, seq: int) -> None:
        self._cache.pop(seq, None)
        self._least.pop(seq, None)

    def close(self) -> None:
        self.closed = True


class ScriptedDrafter:
    """A Drafter that proposes what `script` returns for a history: right, wrong or adversarial drafts."""

    def __init__(
        self,
        script: Callable[[Sequence[int]], Sequence[int] | Draft | None],
        *,
        name: str = "scripted",
    ) -> None:
        self.name = name
        self._script = script
        self.outcomes: list[Outcome] = []
        self.open: set[int] = set()

    def start(self, request: RequestView) -> None:
        self.open.add(request.id)

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        return [self._one(request, limit) for request, limit in requests]

    def _one(self, request: RequestView, limit: DraftLimit) -> Draft | None:
        proposed = self._script(request.tokens)
        if proposed is None or len(proposed) == 0 or limit.max_tokens <= 0:
            return None
        draft = proposed if isinstance(proposed, Draft) else Draft(tuple(proposed), self.name)
        return draft.cut(limit.max_tokens)

    def observe(self, request: RequestView, outcome: Outcome) -> None:  # noqa: ARG002
        self.outcomes.append(outcome)

    def stop(self, request: RequestView) -> None:
        self.open.discard(request.id)

    def close(self) -> None:
        pass


class FakeSampler:
    """A TokenSampler that proposes the most likely token."""

    def propose(
        self,
        logits: Logits,
        request: RequestView,  # noqa: ARG002
        prefix: Sequence[int],  # noqa: ARG002
    ) -> tuple[int, float, None]:
        weights = np.exp(logits - logits.max())
        best = int(logits.argmax())
        return best, float(weights[best] / weights.sum()), None


def drafter_context(model: Model | None = None, *, store: Path | None = None) -> DrafterContext:
    """A context for a drafter's factory in a test; its loader returns a FakeModel of the same vocabulary."""
    target = model or FakeModel()
    tokenizer = target.tokenizer

    def follow(constraint: Constraint) -> GrammarState:
        from foredraft.sampling.constraint import compile_constraint

        return compile_constraint(constraint, tokenizer)

    def load(path: str, *, sequences: int, context_length: int) -> Model:
        return FakeModel(
            target.info.vocab_size, sequences=sequences, context_length=context_length, name=path
        )

    return DrafterContext(
        target=target.info,
        capabilities=target.capabilities,
        tokenizer=tokenizer,
        sampler=FakeSampler(),
        load_model=load,
        store=store,
        grammar=follow,
    )


def run_drafter(drafter: Drafter, text: Sequence[int], *, prompt: int, limit: int = 64) -> list[Draft]:
    """Replay a known text: start with its first `prompt` tokens, draft at every position, commit by the match
    rule, and return all drafts. For tests and benchmarks of drafters; needs no model.
    """
    request = RequestView(id=1, tokens=list(text[:prompt]), prompt_length=prompt)
    drafter.start(request)
    drafts: list[Draft] = []
    while len(request.tokens) < len(text):
        position = len(request.tokens)
        draft = drafter.draft([(request, DraftLimit(limit))])[0]
        accepted, node = 0, -1
        if draft is not None:
            drafts.append(draft)
            future = text[position : len(text) - 1]
            parents = range(-1, len(draft) - 1) if draft.parents is None else draft.parents
            for row, (token, parent) in enumerate(zip(draft.tokens, parents, strict=True)):
                if parent == node and accepted < len(future) and token == future[accepted]:
                    accepted, node = accepted + 1, row
        committed = tuple(text[position : position + accepted + 1])
        request.tokens.extend(committed)
        drafter.observe(request, Outcome(position, committed, draft, accepted))
    drafter.stop(request)
    return drafts


def assert_lossless(
    model: Callable[[], Model],
    drafters: Callable[[Model], Sequence[Drafter]],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    concurrent: bool = False,
    planner: Callable[[], Planner] | None = None,
) -> Mapping[str, int]:
    """Run every prompt with and without the drafters and compare the answers token by token.

    `concurrent` adds all prompts at once; `planner` creates the planner that chooses between the drafters (by
    default all of them always draft). A model with a `clock`, such as FakeModel, runs in that virtual time.
    Returns the number of accepted draft tokens by origin, so that a test can also check that something was
    drafted. Raises AssertionError at the first difference.
    """
    from foredraft.engine.engine import Engine

    outputs: list[list[list[int]]] = []
    origins: dict[str, int] = {}
    for speculated in (False, True):
        target = model()
        engine = Engine(
            target,
            drafters=drafters(target) if speculated else (),
            planner=planner and planner(),
            clock=getattr(target, "clock", perf_counter),
        )
        texts: list[list[int]] = []
        if concurrent:
            handles = [engine.add(prompt, params) for prompt in prompts]
            results = engine.run(handles)
            texts = [list(result.tokens) for result in results]
        else:
            results = [engine.generate(list(prompt), params=params) for prompt in prompts]
            texts = [list(result.tokens) for result in results]
        for result in results if speculated else ():
            for origin in result.origins:
                origins[origin] = origins.get(origin, 0) + 1
        outputs.append(texts)
        engine.close()
    for number, (plain, drafted) in enumerate(zip(*outputs, strict=True)):
        if plain != drafted:
            at = next((i for i, (a, b) in enumerate(zip(plain, drafted, strict=False)) if a != b), None)
            raise AssertionError(f"prompt {number} differs at token {at}: {plain[:at]} … vs {drafted[:at]} …")
    return origins
