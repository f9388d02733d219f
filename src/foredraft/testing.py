"""Public test doubles: a model without weights, a scripted drafter, and the lossless check.

Foredraft's own tests use them; tests of plugins can too (see docs/write-a-drafter.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from time import perf_counter

import numpy as np

from foredraft.errors import BackendError, OutOfKVError, RequestError, UnsupportedModelError
from foredraft.images import Image, PreparedImage, row_keys
from foredraft.protocols import (
    Drafter,
    DrafterContext,
    GrammarState,
    Head,
    Model,
    Planner,
    RequestView,
    Vision,
)
from foredraft.templates.control_texts import NO_CONTROL_TEXTS, Span
from foredraft.templates.traits import TemplateTraits
from foredraft.testing_heads import FEATURE_SIZE, FakeHead, LogitsFunction, chain_on, feature_row
from foredraft.types import (
    Capabilities,
    Draft,
    DraftLimit,
    Features,
    Logits,
    Message,
    ModelInfo,
    Outcome,
    Rollback,
    Rows,
    SamplingParams,
)

__all__ = [
    "FEATURE_SIZE",
    "FakeHead",
    "FakeModel",
    "FakeSampler",
    "FakeTokenizer",
    "FakeVision",
    "LogitsFunction",
    "ScriptedDrafter",
    "assert_lossless",
    "drafter_context",
    "markov_logits",
    "run_drafter",
]


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

    def encode_rendered(
        self,
        text: str,
        literal: Sequence[Span],  # noqa: ARG002
        *,
        begins: bool = True,  # noqa: ARG002
    ) -> list[int]:
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


class FakeVision:
    """A Vision of a FakeModel: an image takes a row for every started square of 8 × 8 pixels, between two
    tokens, and its key is a hash of its pixels. `prepared` counts how often an image was encoded.
    """

    def __init__(self, vocab_size: int = 258, *, chunk: int = 16, marker: str = "") -> None:
        bytewise = vocab_size >= 258
        self.placeholder = 257 if bytewise else vocab_size - 2
        self.chunk = chunk
        self.marker = marker
        self.prepared = 0
        self._around = (ord("["), ord("]")) if bytewise else (0, 1)

    def lay_out(self, image: Image) -> PreparedImage:
        height, width, _ = image.pixels.shape
        rows = -(-height // 8) * -(-width // 8)
        key = sha256(f"{width} × {height} ".encode() + image.pixels.tobytes()).hexdigest()
        before, after = self._around
        tokens = (before, *[self.placeholder] * rows, after)
        return PreparedImage(key, tokens, ((1, rows),), image=image)

    def prepare(self, image: Image) -> PreparedImage:
        self.prepared += 1
        return replace(self.lay_out(image), image=None)


class FakeModel:
    """A Model whose logits are a function of the prefix: exact, instant, and strict about the KV cache.

    It raises where a real backend would misbehave silently: rows that do not start at the end of the cache,
    more rows than `max_rows`, a sequence out of range. `forwards` records every batch. `kv_cells` limits the
    total tokens of all sequences; with None only each sequence's context is limited. `features` are the
    names of the hidden states it returns; they are hashes of the prefix, which a FakeHead checks. With
    `vision` it sees images: every row of an image before a token moves its logits to other tokens. So does
    each of its `adapters`.
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
        features: tuple[str, ...] = (),
        vision: FakeVision | None = None,
        adapters: tuple[str, ...] = (),
        name: str = "fake",
    ) -> None:
        self.tokenizer = FakeTokenizer(vocab_size)
        self.vision: Vision | None = vision
        self.adapters: Mapping[str, str] = {adapter: f"key of {adapter}" for adapter in adapters}
        self._adapted: dict[int, str] = {}
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
            features=features,
            feature_size=FEATURE_SIZE if features else 0,
            snapshot_key=f"{name}|{vocab_size}|{context_length}",
        )
        self._cache: dict[int, list[int]] = {}
        self._least: dict[int, int] = {}
        """Of a sequence that was copied: the fewest cells that it can be cut to (`Capabilities.window`)."""
        self._tree: dict[int, tuple[list[int], list[list[int]]]] = {}
        self.forwards: list[tuple[Rows, ...]] = []
        self._prefixes: list[list[int]] = []
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

    def adapt(self, seq: int, adapter: str) -> None:
        if self.length(seq):
            raise BackendError(f"sequence {seq} holds cells of another adapter")
        if adapter and adapter not in self.adapters:
            raise BackendError(f"there is no adapter {adapter}")
        self._adapted[seq] = adapter

    def forward(self, batch: Sequence[Rows]) -> Logits:
        self.forwards.append(tuple(batch))
        if sum(len(rows.tokens) for rows in batch) > self.capabilities.max_batch:
            raise BackendError("more rows than max_batch")
        for rows in batch:
            self._check(rows)
            self._check_images(rows)
        self._check_cells(sum(len(rows.tokens) for rows in batch))
        wanted: list[Logits] = []
        self._prefixes = []
        for rows in batch:
            wanted.extend(self._append(rows))
        return np.stack(wanted) if wanted else np.empty((0, self.info.vocab_size), np.float32)

    def features(self, rows: Sequence[int] | None = None) -> Features:
        kinds = len(self.capabilities.features)
        if not kinds:
            raise BackendError("the model was loaded without features")
        prefixes = self._prefixes if rows is None else [self._prefixes[row] for row in rows]
        prefixes = [self._as_text(prefix) for prefix in prefixes]
        found = [feature_row(len(prefix) - 1, _hash(prefix), kinds) for prefix in prefixes]
        return np.asarray(found, np.float32).reshape(len(found), kinds * FEATURE_SIZE)

    def load_head(self, path: Path | None, *, sequences: int) -> Head:
        """A head that is always right if the logits depend on the last token only. The file is not read."""
        if not self.capabilities.features:
            raise UnsupportedModelError("the model was loaded without features")
        return FakeHead(self, name=str(path or "own layers"), sequences=sequences)

    def logits_after(self, prefix: Sequence[int]) -> Logits:
        """The logits, shape (vocabulary,), of the token after a prefix."""
        return self._logits(prefix)

    def _check(self, rows: Rows) -> None:
        if not 0 <= rows.seq < self.capabilities.sequences:
            raise BackendError(f"no sequence {rows.seq}")
        if rows.start != self.length(rows.seq):
            raise BackendError(f"rows start at {rows.start}, the cache ends at {self.length(rows.seq)}")
        if rows.start + len(rows.tokens) > self.info.context_length:
            raise OutOfKVError("context full")
        if rows.logits > self.capabilities.max_rows:
            raise BackendError("more rows than max_rows")

    def _check_images(self, rows: Rows) -> None:
        chunk = 0 if self.vision is None else self.vision.chunk
        for span in rows.images:
            first, count = span.image.runs[span.run]
            if self.vision is None:
                raise BackendError("this model does not see")
            if span.image.image is not None:
                raise BackendError("an image has no rows yet")
            if not rows.start <= span.start < span.end <= rows.start + len(rows.tokens):
                raise BackendError("an image is not where its rows are")
            for cut in (span.first, span.first + span.rows):
                if cut < count and cut % (chunk or count):
                    raise BackendError(f"an image is cut after {cut} of {count} rows")
            tokens = rows.tokens[span.start - rows.start : span.end - rows.start]
            if set(tokens) != {self.vision.placeholder} or first + count > len(span.image.tokens):
                raise BackendError("an image's rows are placeholders")

    def _as_text(self, prefix: Sequence[int]) -> list[int]:
        """The tokens of a prefix in which rows of images are keys."""
        placeholder = 0 if self.vision is None else self.vision.placeholder
        return [placeholder if token < 0 else token for token in prefix]

    def _logits_of(self, prefix: Sequence[int]) -> Logits:
        seen = [token for token in prefix if token < 0]
        if not seen:
            return self._logits(prefix)
        return np.roll(self._logits(self._as_text(prefix)), sum(seen) % self.info.vocab_size)

    def _check_cells(self, more: int) -> None:
        if self._kv_cells is not None and self.cells + more > self._kv_cells:
            raise OutOfKVError("the KV cache is full")

    def _append(self, rows: Rows) -> list[Logits]:
        cached = self._cache.setdefault(rows.seq, [])
        paths: list[list[int]] = []
        tokens = list(rows.tokens)
        for span in rows.images:
            keys = row_keys(span.image, span.run)[span.first : span.first + span.rows]
            tokens[span.start - rows.start : span.end - rows.start] = keys
        for i, token in enumerate(tokens):
            parent = i - 1 if rows.parents is None else rows.parents[i]
            paths.append([*(paths[parent] if parent >= 0 else []), token])
        first = len(rows.tokens) - rows.logits
        prefix = list(cached)
        if rows.parents is not None:
            self._tree[rows.seq] = (prefix, paths)
        cached.extend(tokens)
        self._prefixes += [prefix + path for path in paths]
        adapter = self._adapted.get(rows.seq)
        shift = 1 + list(self.adapters).index(adapter) if adapter else 0
        found = [self._logits_of(prefix + path) for path in paths[first:]]
        return [np.roll(logits, shift) for logits in found] if shift else found

    def length(self, seq: int) -> int:
        return len(self._cache.get(seq, ()))

    def to_recompute(self, seq: int) -> int:  # noqa: ARG002
        return 0

    @property
    def cells(self) -> int:
        """Total KV cells of all sequences."""
        return sum(len(cached) for cached in self._cache.values())

    def tokens(self, seq: int) -> list[int]:
        """The tokens in the sequence's cache; rows of images are their keys (`images.row_keys`)."""
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
        if self._adapted.get(src, "") != self._adapted.get(dst, ""):
            raise BackendError("cannot fork cells of another adapter")
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


def _hash(prefix: Sequence[int]) -> int:
    found = 0
    for token in prefix:
        found = chain_on(found, token)
    return found


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

    def follow(params: SamplingParams) -> GrammarState | None:
        from foredraft.sampling.thought import answer_guide

        return answer_guide(params, tokenizer)

    def load(path: str, *, sequences: int, context_length: int) -> Model:
        return FakeModel(
            target.info.vocab_size, sequences=sequences, context_length=context_length, name=path
        )

    def load_head(path: str, *, sequences: int) -> Head:
        return target.load_head(Path(path) if path else None, sequences=sequences)

    return DrafterContext(
        target=target.info,
        capabilities=target.capabilities,
        tokenizer=tokenizer,
        sampler=FakeSampler(),
        load_model=load,
        load_head=load_head,
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
    adapters: Sequence[str] = ("",),
) -> Mapping[str, int]:
    """Run every prompt with and without the drafters and compare the answers token by token.

    `concurrent` adds all prompts at once; `planner` creates the planner that chooses between the drafters (by
    default all of them always draft). Prompts are computed with the `adapters` in turns. A model with a
    `clock`, such as FakeModel, runs in that virtual time. Returns the number of accepted draft tokens by
    origin, so that a test can also check that something was drafted. Raises AssertionError at the first
    difference.
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
        requests = list(zip(prompts, cycle(adapters), strict=False))
        if concurrent:
            results = engine.run([engine.add(prompt, params, adapter=name) for prompt, name in requests])
        else:
            results = [engine.generate(list(prompt), params, adapter=name) for prompt, name in requests]
        for result in results if speculated else ():
            for origin in result.origins:
                origins[origin] = origins.get(origin, 0) + 1
        outputs.append([list(result.tokens) for result in results])
        engine.close()
    for number, (plain, drafted) in enumerate(zip(*outputs, strict=True)):
        if plain != drafted:
            at = next((i for i, (a, b) in enumerate(zip(plain, drafted, strict=False)) if a != b), None)
            raise AssertionError(f"prompt {number} differs at token {at}: {plain[:at]} … vs {drafted[:at]} …")
    return origins
