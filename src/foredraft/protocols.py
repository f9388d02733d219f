"""The whole contract on one screen: what the engine asks of a model, a tokenizer, a drafter and a planner.

A model computes, a drafter proposes, a planner chooses, the engine commits. Everything here is synchronous
and called from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from foredraft.config import ModelOptions
from foredraft.embedding import Embedder, ModelKind, Pooling
from foredraft.images import Image, ImageSpan, PreparedImage
from foredraft.templates.control_texts import ControlTexts, Span
from foredraft.templates.traits import TemplateTraits
from foredraft.types import (
    Capabilities,
    Choice,
    Draft,
    DraftLimit,
    Features,
    HeadRows,
    Load,
    Logits,
    Message,
    ModelInfo,
    Outcome,
    Probs,
    Round,
    Rows,
    SamplingParams,
)


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def end_tokens(self) -> frozenset[int]:
        """Every token that ends a generation (end of sequence, end of turn)."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The source of the model's chat template, if it has one."""
        ...

    @property
    def template_traits(self) -> TemplateTraits:
        """The abilities of the chat template."""
        ...

    @property
    def control_texts(self) -> ControlTexts:
        """The texts of the tokens that are recognised in a text only on request."""
        ...

    @property
    def infill_tokens(self) -> tuple[int, int, int] | None:
        """The control tokens before the text in front of a gap, before the text after it, and before its
        filling.

        None if the model was not trained to fill gaps.
        """
        ...

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        """Token ids of `text`; `special` also recognises special tokens written in it."""
        ...

    def encode_rendered(self, text: str, literal: Sequence[Span], *, begins: bool = True) -> list[int]:
        """Token ids of a prompt rendered by a chat template, with the token that begins a text. Special
        tokens are recognised, except those that overlap a span of `literal`; spans are in order. With
        `begins` False the text goes on after an image, and gets no such token.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token: b"" for a control token; they may be a part of a character."""
        ...

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: object
    ) -> str:
        """The prompt of a conversation. Raises RequestError if the model's template rejects it."""
        ...


class Vision(Protocol):
    """How a model sees images. `lay_out` and `prepare` may be called from any thread, also during a forward,
    and the first does not wait for the second.
    """

    @property
    def placeholder(self) -> int:
        """The token that stands for a row of an image: a valid id, which is never drafted."""
        ...

    @property
    def marker(self) -> str:
        """What the model's chat template writes for a content part {"type": "image"}; `PreparedImage.tokens`
        take its place. With "" the template need not know images, and their place is that in the message.
        """
        ...

    @property
    def chunk(self) -> int:
        """A run of an image's rows is cut between forwards only at multiples of this many rows from its first
        one, so that its rows are always computed alike; 0: it is never cut.
        """
        ...

    def lay_out(self, image: Image) -> PreparedImage:
        """What an image becomes in a prompt, without its rows unless they are kept: enough to count them.

        Raises RequestError for an image that the model cannot see, BackendError.
        """
        ...

    def prepare(self, image: Image) -> PreparedImage:
        """The same with its rows. What takes time is done here, and kept for the next time that the same
        image comes.

        Raises RequestError for an image that the model cannot see, BackendError.
        """
        ...


class Model(Protocol):
    """One loaded model with a KV cache for `capabilities.sequences` sequences, numbered from 0."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def vision(self) -> Vision | None:
        """How it sees images; None if it does not."""
        ...

    @property
    def idle_threads(self) -> int:
        """How many of its threads the last forward left out, because others need their cores; V(n) depends
        on it, and no result does. 0 if it never does so.
        """
        ...

    @property
    def adapters(self) -> Mapping[str, str]:
        """The LoRA adapters that were loaded with it: for each name a key of what it computes, its files and
        their scales, under which what depends on it is kept.
        """
        ...

    def adapt(self, seq: int, adapter: str) -> None:
        """Compute an empty sequence's rows with this adapter from now on, "" for none, as at first. It stays
        when the sequence is released; a fork or snapshot is for a sequence with the same. In a forward, rows
        of sequences with different adapters take a pass each. Raises BackendError for a sequence that holds
        cells, and for an adapter that is not loaded.
        """
        ...

    def forward(self, batch: Sequence[Rows]) -> Logits:
        """Compute all rows and append them to their sequences' KV cache.

        Returns shape (rows that asked for logits, vocabulary), in batch order: a view that is valid until
        the next forward. Raises OutOfKVError (the cache is as before), BackendError.
        """
        ...

    def features(self, rows: Sequence[int] | None = None) -> Features:
        """The hidden states `capabilities.features` of these rows of the last forward, counted from 0 in
        batch order, also of rows without logits; by default of all. They are copied here, not by the forward,
        and are valid until the next one. Raises BackendError if the model was loaded without any, and if the
        last forward failed or was that of another engine on this model.
        """
        ...

    def load_head(self, path: Path | None, *, sequences: int) -> Head:
        """Load a head for this model: a file, or with None the layers for multi-token prediction that the
        model's own file has. The head is freed with `Head.close`, before the model.

        Raises ModelError if it does not fit this model, CapacityError, and UnsupportedModelError if the model
        was not loaded with the features that the head needs (`Backend.features_for`).
        """
        ...

    def length(self, seq: int) -> int:
        """KV cells the sequence holds, in tokens."""
        ...

    def truncate(self, seq: int, length: int) -> None:
        """Keep the first `length` cells. Raises BackendError where `capabilities.rollback` forbids it; the
        sequence is then as before.
        """
        ...

    def to_recompute(self, seq: int) -> int:
        """Of the sequence's cells, those that its next forward computes again before its own rows; always 0
        but after a truncation by more than `rollback_bound` rows of a model with `Rollback.SNAPSHOT`.
        """
        ...

    def reachable(self, seq: int, length: int) -> int:
        """The most cells, up to `length`, that `truncate` can always keep of the sequence."""
        ...

    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None:
        """After a tree forward at `start`: keep only the rows `path` (indices into its rows)."""
        ...

    def fork(self, src: int, dst: int, length: int) -> None:
        """Replace dst by the first `length` cells of src. Raises BackendError, with nothing changed, where
        `capabilities.window` forbids it (`Capabilities.copy_reaches`).
        """
        ...

    def snapshot(self, seq: int) -> object:
        """The sequence's state, for `restore`. Opaque; costs memory. With a `capabilities.snapshot_key` it is
        a bytearray owned by the caller, which any model with that key can restore, also in another process.
        """
        ...

    def restore(self, seq: int, snapshot: object) -> None:
        """Replace a sequence by a snapshot. Raises BackendError if that fails; the sequence is then empty."""
        ...

    def release(self, seq: int) -> None:
        """Drop the sequence's cells."""
        ...

    def close(self) -> None:
        """Free everything. May be called twice."""
        ...


class Head(Protocol):
    """A small network that continues a text from the target's hidden states: EAGLE-3 (Li et al. 2025, arXiv
    2503.01840), layers for multi-token prediction (DeepSeek-V3, arXiv 2412.19437 §2.2), block diffusion
    (DFlash, Chen, Liang and Liu 2026, arXiv 2602.06036).

    It holds rows of consecutive positions for each of `sequences` sequences; a sequence may begin at any
    position, so that a text whose beginning came from a cache has a head, too. Its row for token n predicts
    token n + 1.
    """

    @property
    def info(self) -> ModelInfo: ...
    @property
    def needs(self) -> tuple[str, ...]:
        """The target's features that it reads, in the order of its columns (`Capabilities.features`)."""
        ...

    @property
    def window(self) -> int:
        """How many rows a row depends on, itself included; 0 for all. With 1 the head keeps no rows."""
        ...

    @property
    def trees(self) -> bool:
        """Whether rows may have `parents`."""
        ...

    @property
    def block(self) -> int:
        """The most tokens after a sequence's last row that it predicts at once: `HeadRows.logits` are of
        these tokens, and there are no hidden states of its own to go on from. 0 if it predicts one.
        """
        ...

    @property
    def sequences(self) -> int: ...
    def forward(self, batch: Sequence[HeadRows]) -> Logits:
        """Compute all rows and append them to their sequences. A sequence without rows may start anywhere.

        Returns shape (rows that asked for logits, the target's vocabulary), in batch order, -inf for tokens
        that the head never proposes: a view that is valid until the next forward. Raises OutOfKVError (the
        head is as before), BackendError.
        """
        ...

    def length(self, seq: int) -> int:
        """The position after the sequence's last row; 0 if it has none."""
        ...

    def truncate(self, seq: int, length: int) -> None:
        """Drop the rows of tokens from position `length` on, and all rows of a tree."""
        ...

    def release(self, seq: int) -> None:
        """Drop the sequence's rows."""
        ...

    def close(self) -> None:
        """Free everything. May be called twice."""
        ...


UNKEPT = "\0"
"""A scope that begins with this is for a measurement: nothing of its requests is kept after them. No key has
such a scope.
"""


def scope_with(scope: str, adapter: str) -> str:
    """The scope of requests that are computed with an adapter, by its key (`Model.adapters`), "" for none:
    cells and texts of one adapter are of no use to another. No key of a user has such a scope.
    """
    return f"{scope}\1{adapter}" if adapter else scope


@dataclass(slots=True)
class RequestView:
    """A request as drafters see it. They never write to it.

    `id` is stable from `start` to `stop`; a conversation keeps its id over several turns. `tokens` is the
    committed history, prompt included; the list object stays the same while it changes. `scope` separates
    users, and adapters (`scope_with`): a shared store never proposes one scope's text in another's request.
    `prediction` is the text the client expects ("predicted outputs"), tokenised. `images` are the runs of the
    prompt's tokens that are rows of images, and placeholders in `tokens`. `adapter` is the name of the LoRA
    adapter that the model computes it with.
    """

    id: int
    tokens: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    prompt_length: int = 0
    scope: str = ""
    prediction: tuple[int, ...] = ()
    images: tuple[ImageSpan, ...] = ()
    adapter: str = ""

    @property
    def kept(self) -> bool:
        """Whether its text may be remembered, and its KV cells kept, after its end."""
        return not self.scope.startswith(UNKEPT)


class Drafter(Protocol):
    """Anything that proposes tokens. State is kept per request id, shared only in a store made to be shared.

    For every request: `start`, then any number of `draft` and `observe`, then `stop`. A drafter may also have
    `match_length(request) -> int`, in O(1) for each new token: how many tokens at the end of the request's
    text repeat earlier text. A planner attempts a draft sooner where that is long. It is called before
    `observe` for tokens that `request.tokens` already has.

    And it may have `absorb(request, start, features)`: called after every forward of a target that was loaded
    with features (`Capabilities.features`), with those of the rows that were kept, the first of which is that
    of token `start` of `request.tokens`. They are valid only during the call, which comes before `observe`.
    Rows come in order, in one call or several; one that came before comes again where text was removed or is
    read again, and those of a prefix from a cache do not come.

    A drafter whose tokens take real time, as those of a network do, has `costly = True`: a planner then asks
    it after the others, where what they found leaves something to gain. `reads` is the most tokens of a text
    that it reads before a draft, if not all; then rows of a prompt that are further back do not come. With
    `reads = 1` only the last row comes, and only before a draft; so it is with a drafter that was not asked
    for a draft of the request in many rounds. Rows that are not read need not be copied. `parameters` says
    how many its network has, and `at_once = True` that it drafts all tokens at once, at one price.
    """

    @property
    def name(self) -> str: ...
    def start(self, request: RequestView) -> None:
        """A request begins; `request.tokens` is its prompt."""
        ...

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        """A draft or None for each request, in order; all requests at once, so that a model can batch them.

        A draft never exceeds its limit's `max_tokens`, never is empty, and holds valid token ids.
        """
        ...

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        """The history changed (`request.tokens` already shows it), by any drafter, or text was removed.

        Called before the next `draft` or `stop`; several rounds may come together, as one outcome without a
        draft.
        """
        ...

    def stop(self, request: RequestView) -> None:
        """The request is over: free its state."""
        ...

    def close(self) -> None:
        """Save what outlives the process and free everything. May be called twice."""
        ...


class Proposer(NamedTuple):
    """A drafter as a planner sees it. `match_length(request)`: tokens at the end of the request's text that
    repeat earlier text; 0 of a drafter without that method. `costly`: whether its tokens take real time;
    `reads`: the most tokens of a text that it reads before a draft, 0 for all; `size`: its parameters as a
    share of the target's, which says what its tokens take before any was measured; `at_once`: whether a draft
    takes the same however many tokens it has.
    """

    name: str
    match_length: Callable[[RequestView], int]
    costly: bool = False
    reads: int = 0
    size: float = 1.0
    at_once: bool = False


class Planner(Protocol):
    """Decides which drafters attempt a draft, how far, and which draft is verified.

    In every round that decodes: `limits`, `further`, `choose`, and `observe`, at the latest before the
    request stops.
    """

    def start(self, request: RequestView, drafters: Sequence[Proposer]) -> None:
        """A request begins; these drafters may draft for it."""
        ...

    def limits(
        self, requests: Sequence[RequestView], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        """For each drafter (by name) and request: how far it drafts now, None for not at all. Empty: none
        does.
        """
        ...

    def further(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        """As `limits`, for drafters that were not in those, now that the others' drafts are known."""
        ...

    def choose(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> Sequence[Choice]:
        """For each request the draft to verify, possibly cut, or why it decodes plainly."""
        ...

    def observe(self, rounds: Sequence[Round]) -> None:
        """Learn from finished rounds. Never writes to disk."""
        ...

    def stop(self, request: RequestView) -> None:
        """A request is over: free its state."""
        ...


class TokenSampler(Protocol):
    """The coupled sampling for a draft model (docs/how-it-works.md), passed in so that it need not be
    imported.
    """

    def propose(
        self, logits: Logits, request: RequestView, prefix: Sequence[int]
    ) -> tuple[int, float, Probs | None]:
        """The token to propose after `request.tokens + prefix`, its probability under the draft model, and,
        for the sampled rules, the distribution it was drawn from. `logits` has shape (vocabulary,).
        """
        ...


class ModelLoader(Protocol):
    """Loads a second model (a draft model) beside the target, with at most `context_length` tokens."""

    def __call__(self, path: str, *, sequences: int, context_length: int) -> Model: ...


class HeadLoader(Protocol):
    """Loads a head for the target: a file (path or name), or "" for the one that belongs to it: a file that
    was found for it, else its own layers for multi-token prediction.

    Raises what `Model.load_head` does, and ModelNotFoundError.
    """

    def __call__(self, path: str, *, sequences: int) -> Head: ...


class GrammarState(Protocol):
    """An answer's position in its constraint, passed to a drafter of forced tokens so that it need not be
    imported.
    """

    def advance(self, tokens: Sequence[int]) -> None:
        """Advance by committed tokens. Raises RequestError for one that the constraint forbids."""
        ...

    def forced(self) -> list[int]:
        """The tokens that must come next; none where there is a choice."""
        ...


class GrammarCompiler(Protocol):
    """Creates the state of an answer with these parameters at its beginning; None if any token may follow any
    other.

    Raises RequestError for an unusable constraint, and MissingDependencyError.
    """

    def __call__(self, params: SamplingParams) -> GrammarState | None: ...


def _ignore(note: str) -> None:
    """Ignore the note."""


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """Everything that a drafter's factory may use. `store` is None if nothing may be stored on disk,
    `grammar` if constraints are not supported. `notice` is called with a line for the user.
    """

    target: ModelInfo
    capabilities: Capabilities
    tokenizer: Tokenizer
    sampler: TokenSampler
    load_model: ModelLoader
    load_head: HeadLoader
    store: Path | None = None
    grammar: GrammarCompiler | None = None
    notice: Callable[[str], None] = _ignore


class DrafterFactory(Protocol):
    """The object of a `foredraft.drafters` entry point. `options` are the stage's parsed key=value pairs.

    Raises SpeculationStringError for an invalid value, and ModelError, CapacityError or
    MissingDependencyError if the drafter cannot be used: the engine then reports that and continues without
    it.
    """

    def __call__(self, context: DrafterContext, options: Mapping[str, str]) -> Drafter: ...


class Backend(Protocol):
    """The object of a `foredraft.backends` entry point."""

    name: str

    def accepts(self, path: Path) -> bool:
        """Whether this backend supports the file or folder, judged by its content rather than its name."""
        ...

    def features_for(
        self, path: Path, head: Path | None, options: ModelOptions | None = None
    ) -> tuple[str, ...]:
        """What a model must be loaded with (`ModelOptions.watch`) for a head to draft for it: for the head in
        a file, or with None for its own layers for multi-token prediction; () if it has none.

        Reads headers only, by what the model is loaded with (`options`; by default those of `ModelOptions`).
        Raises ModelError if the file is no head, or a head that cannot be used with this model, ConfigError
        for options that cannot be used.
        """
        ...

    def weights_hash(self, path: Path, options: ModelOptions | None = None) -> str:
        """The same for all quantisations of a model's weights in this backend's format, so that a head of one
        is found for the others; "" if that cannot be told. Reads little of the file. Raises what
        `features_for` does.
        """
        ...

    def kind(self, path: Path, options: ModelOptions | None = None) -> ModelKind:
        """What the model's files say that it is for. Reads headers only. Raises what `features_for` does."""
        ...

    def load(self, path: Path, options: ModelOptions) -> Model:
        """Load a model that generates. Raises ModelError, CapacityError, MissingDependencyError,
        BackendError.
        """
        ...

    def load_embedder(self, path: Path, options: ModelOptions, pooling: Pooling | None) -> Embedder:
        """Load an embedding model or a reranker; with a `pooling`, any model as an embedding model. Raises
        what `load` does, and ConfigError for a pooling that it cannot have.
        """
        ...
