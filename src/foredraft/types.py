"""Frozen values that the parts of Foredraft exchange: drafts, rounds, requests, results. Data, no
behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from foredraft.images import ImageSpan

Logits: TypeAlias = npt.NDArray[np.float32]
"""Shape (rows, vocabulary) or (vocabulary,), natural-log scale, unnormalised."""

Probs: TypeAlias = npt.NDArray[np.float64]
"""Shape (vocabulary,); sums to 1."""

Features: TypeAlias = npt.NDArray[np.float32]
"""Shape (rows, n × `Capabilities.feature_size`): n of a target's hidden states for each row, side by side in
the order of `Capabilities.features`.
"""

TARGET = "target"
"""The origin of a token that the target model chose itself."""

MAX_DRAFT_TOKENS = 63
"""The longest draft that is made: verified beside the last committed token it takes 64 rows of a forward."""

VerifyRule: TypeAlias = Literal["match", "rejection", "block"]
ConstraintKind: TypeAlias = Literal["json_object", "json_schema", "regex", "grammar"]
Message: TypeAlias = Mapping[str, Any]
"""One chat message: at least `role` and `content`, as in OpenAI's API. A part of its content that is an image
is {"type": "image", "image": Image}.
"""


# --- forward -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows of one sequence in a forward.

    `start` is the number of KV cells the sequence holds before this forward (the position of the first
    row). The last `logits` rows return logits; 0 for a prefill chunk that is not the prompt's last.
    `parents` makes the rows a tree: `parents[i]` is the index *within these rows* of row i's parent, -1
    for a row that follows the cached sequence directly. None means a chain. `images` are the rows of images
    among them, in order; the tokens of those are placeholders. `start` and the sequence's length count rows,
    also where an image takes fewer positions.
    """

    seq: int
    start: int
    tokens: Sequence[int]
    logits: int
    parents: Sequence[int] | None = None
    images: Sequence[ImageSpan] = ()


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Consecutive rows of one sequence in a forward of a head (`protocols.Head`).

    Row i is a pair: `tokens[i]`, which is token `start + i` of the text, and `features[i]`, the target's
    features of the row before it, that of token `start + i - 1`. So `start` is at least 1. With `features`
    None they are the head's own hidden states, those of each row's parent: in a chain, one row, after the
    row before it; in a tree `parents[i]` is the index of row i's parent among the rows that the sequence got
    since its last row with features, which is -1. The last `logits` rows return logits; of a head that
    predicts blocks (`Head.block`) the last row does, for each of the `logits` tokens after it.
    """

    seq: int
    start: int
    tokens: Sequence[int]
    features: Features | None
    logits: int
    parents: Sequence[int] | None = None


class Rollback(StrEnum):
    """How a model removes rows that verification rejected. Unless it is `TRUNCATE`, only rows of the
    sequence's last forward, after the first row that returned logits, can be removed; or the whole sequence.
    """

    TRUNCATE = "truncate"  # any length, for free
    BOUNDED = "bounded"  # the last `Capabilities.rollback_bound` rows, for free and once
    SNAPSHOT = (
        "snapshot"  # as BOUNDED; a longer rollback recomputes the cells it keeps (`Model.to_recompute`)
    )


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a loaded model can do. Differences between backends are this data, never a type check.

    `batch_invariant`: logits of a row do not depend, bit for bit, on what else is in the batch (measured
    when the model was loaded); `invariance_note` says why not, or how it was established.
    `max_rows`: the most rows of one sequence in a verifying forward. `max_batch`: the most rows of all
    sequences together in one forward. `sequences`: the number of sequences the KV cache can hold.
    `ragged`: sequences with different numbers of rows share one pass over the weights; otherwise each row
    count takes a pass and V(n) is their sum. `snapshot_key` identifies everything that a snapshot depends on;
    it is empty if snapshots are only valid within the process. `window`: a snapshot or fork of more cells
    than this has only those that its next token sees (sliding-window attention); 0 if it has all.
    `features` names the hidden states that `Model.features` returns, those that the model was loaded with
    (`ModelOptions.watch`); each has `feature_size` numbers.
    """

    rollback: Rollback
    batch_invariant: bool
    invariance_note: str
    max_rows: int
    max_batch: int
    sequences: int
    trees: bool = False
    features: tuple[str, ...] = ()
    feature_size: int = 0
    fork: bool = True
    rollback_bound: int = 0
    ragged: bool = True
    snapshot_key: str = ""
    window: int = 0

    def copy_reaches(self, held: int, length: int) -> bool:
        """Whether a snapshot of `held` cells, once restored, can be cut to its first `length` and used."""
        if self.rollback is not Rollback.TRUNCATE:
            return length >= held
        return not self.window or held <= self.window or length >= held - 1


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Description of a loaded model. `context_length` is the capacity of one sequence, in tokens.

    `context_chosen` says why it has that length where none was asked for; `trained_context` is the longest
    that the model takes. `vocab_hash` identifies the tokenizer: two models that share it share token ids.
    `settings` are the values chosen automatically (KV types, threads, layers on the device), shown by
    `doctor` and in stats. `recommended` holds the sampling parameters that the model's authors recommend:
    fields of SamplingParams. `memory` is the memory use in bytes, where the backend can measure it:
    "weights_mapped" (mapped from the file; the system can drop and reread them), "weights" (in memory),
    "kv_cache" (reserved for all sequences; used as cells are written), "adapters", "vision" (the weights of
    an mmproj file, and the buffer that the largest image is encoded in), "compute" (buffers of a
    forward, at most). `without` names what this machine could run the model faster with, and does not;
    `doctor` says why. `scalable`: whether its positions can be scaled (RoPE), for a context longer than
    trained for. `notes` are for its user: what to expect of how it was loaded.
    """

    name: str
    path: str
    architecture: str
    file_hash: str
    vocab_size: int
    vocab_hash: str
    context_length: int
    trained_context: int
    parameters: int
    size_bytes: int
    backend: str
    device: str
    quantization: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    recommended: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    without: str = ""
    context_chosen: str = ""
    scalable: bool = False
    notes: tuple[str, ...] = ()

    @property
    def held_bytes(self) -> int:
        """What the model takes of a budget: its weights, its adapters, and what it sees with."""
        return self.size_bytes + self.memory.get("adapters", 0) + self.memory.get("vision", 0)


# --- drafting ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens: a chain, or a tree with `parents`.

    `parents[i]` is the index of token i's parent within `tokens` (always < i), -1 for a child of the last
    committed token; None means a chain. `confidence[i]` is the drafter's own estimate that token i is right
    *given that its ancestors are*: raw, the planner calibrates it; empty when the drafter has none.
    `features` describes the drafter's match (`match_length`, `count`, …), for calibration.
    `probs[i]` is the distribution token i was sampled from, shape (vocabulary,); only sampled chains have
    it, and only the `rejection` and `block` rules read it.
    """

    tokens: tuple[int, ...]
    source: str
    parents: tuple[int, ...] | None = None
    confidence: tuple[float, ...] = ()
    features: Mapping[str, float] = field(default_factory=dict)
    probs: tuple[Probs, ...] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> Draft:
        """The first `length` tokens. Children come after parents, so a cut tree is still a tree."""
        if length >= len(self.tokens):
            return self
        return Draft(
            tokens=self.tokens[:length],
            source=self.source,
            parents=None if self.parents is None else self.parents[:length],
            confidence=self.confidence[:length],
            features=self.features,
            probs=None if self.probs is None else self.probs[:length],
        )


@dataclass(frozen=True, slots=True)
class DraftLimit:
    """How far a drafter may go for one request in this round: `max_tokens` tokens at most.

    A drafter with estimates also stops where the estimated survival of its draft falls under `min_survival`:
    what follows costs more than it brings. A draft whose first token is accepted with a probability below
    `min_probability` does not pay at all.
    """

    max_tokens: int
    min_survival: float = 0.0
    min_probability: float = 0.0

    def within(self, most: int) -> DraftLimit:
        """The same limit with at most `most` tokens."""
        return self if self.max_tokens <= most else DraftLimit(most, self.min_survival, self.min_probability)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request's history changed. Drafters observe every change, also by other drafters' tokens.

    The history is now `old[:kept] + tokens`; a `kept` under the old length: text was removed. `draft` is what
    was verified (or None), of which the first `accepted` tokens along the accepted path were right.
    """

    kept: int
    tokens: tuple[int, ...]
    draft: Draft | None = None
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of verifying a draft: the committed tokens and the rows they were sampled from.

    `tokens` = the accepted draft tokens and then one token of the target's own (the bonus token).
    `path[i]` is the index in the draft of the i-th accepted token. `row_of(i)` is the logits row that token
    i of `tokens` was sampled from (row 0 belongs to the last committed token, row i + 1 to draft token i).
    """

    tokens: tuple[int, ...]
    path: tuple[int, ...]

    @property
    def accepted(self) -> int:
        return len(self.path)

    def row_of(self, index: int) -> int:
        return 0 if index == 0 else self.path[index - 1] + 1


@dataclass(frozen=True, slots=True)
class Constraint:
    """Format that the whole answer must have. `source` is a JSON schema (as JSON text), a regex (Rust's
    syntax) or a grammar (llguidance's variant of Lark, or llama.cpp's GBNF); empty for `json_object`.

    A schema with a keyword that cannot be enforced, such as `uniqueItems`, is refused if `strict`; otherwise
    the keyword is ignored.
    """

    kind: ConstraintKind
    source: str = ""
    strict: bool = True


# --- requests and what comes back ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Thinking:
    """How an answer thinks first: between the marks `opening` and `closing`. `begun`: the prompt has the
    opening; `goes_on`: also the thought's first words. `ending` is what the template writes behind a thought,
    with the closing in it: it ends a thought whose budget is used up, and what follows the closing comes
    before an answer with a constraint.
    """

    opening: str
    closing: str
    ending: str
    begun: bool = False
    goes_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the target's tokens are chosen and when the answer ends. `temperature` 0 is greedy.

    `top_k` 0, `top_p` 1, `min_p` 0 and penalties at their neutral value are off. `logprobs`: the number of
    alternatives to report beside each token (0 = only the token's own), None for no log-probabilities.
    `max_tokens` None = until the context is full. `seed` None = a new seed for each request. The answer ends
    when it fulfils the `constraint`. `stop_repetition` ends an answer that only repeats one passage
    (`engine/request.py`). `thinking` None = as the end of the prompt says, if that is messages
    (`engine/thinking.py`); stop strings and the constraint apply behind the thought. `reasoning_budget`: the
    most tokens of the thought, None for any number.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    verify: VerifyRule = "match"
    constraint: Constraint | None = None
    stop_repetition: bool = False
    thinking: Thinking | None = None
    reasoning_budget: int | None = None


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams` as keywords, for type checkers."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    max_tokens: int | None
    min_tokens: int
    stop: tuple[str, ...]
    stop_tokens: tuple[int, ...]
    ignore_eos: bool
    logprobs: int | None
    verify: VerifyRule
    constraint: Constraint | None
    stop_repetition: bool
    thinking: Thinking | None
    reasoning_budget: int | None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-probability under the target's unmodified distribution, and the `top` alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # end of sequence, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or the context is full
    REPETITION = "repetition"  # the answer repeated itself without end (`SamplingParams.stop_repetition`)
    STOPPED = "stopped"  # ended from outside; the text until then is the answer
    ABORT = "abort"  # the caller cancelled it
    ERROR = "error"  # this request failed; the engine goes on

    @property
    def cut(self) -> bool:
        """Whether the answer was cut off before its own end, without an error."""
        return self in (FinishReason.LENGTH, FinishReason.REPETITION, FinishReason.STOPPED)


class Place(StrEnum):
    """Where an answer is, if its model thinks first. Only the engine judges that (`sampling/thought.py`)."""

    BEFORE = "before"  # nothing but white space, or the beginning of the opening mark
    INSIDE = "inside"  # in the thought
    ENDING = "ending"  # the ending of the thought is being written, up to where the answer begins
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts, named as OpenAI's `usage`. `completion_tokens` counts an end-of-sequence token too.
    `reasoning_tokens` of them are the thought, with its marks.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Named as llama.cpp's `timings`; milliseconds, wall clock."""

    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    draft_n: int
    draft_n_accepted: int

    @property
    def prompt_per_second(self) -> float:
        return 1e3 * self.prompt_n / self.prompt_ms if self.prompt_ms else 0.0

    @property
    def predicted_per_second(self) -> float:
        return 1e3 * self.predicted_n / self.predicted_ms if self.predicted_ms else 0.0


@dataclass(frozen=True, slots=True)
class DrafterStats:
    """One drafter's totals for a request: drafts, tokens drafted and accepted, and drafting time."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """The `speculation` object of a response. `active`: something was drafted for this request; if not,
    `reason` says why. `rounds` counts target forwards that decoded; `acceptance_length` is committed tokens
    per round; `accepted_by_depth[d]` the number of draft tokens accepted at depth d. `estimated_speedup`
    compares with the time of plain rounds: None until two were measured, 1.0 if the difference is within
    their variation. `exact_reason` explains `exact`. `preemptions` counts how often the request was suspended
    because the KV cache was full, and its tokens recomputed. `ms` splits the time of its rounds, in
    milliseconds: "draft" drafting, "verify" the target's forwards, "sample" choosing and committing tokens,
    "other" planning. Requests that share a round share its time. Time between rounds is not counted.
    """

    configured: str
    active: bool
    reason: str | None
    rounds: int
    acceptance_rate: float | None
    acceptance_length: float | None
    estimated_speedup: float | None
    drafters: Mapping[str, DrafterStats]
    accepted_by_depth: tuple[int, ...]
    exact: bool
    exact_reason: str
    notes: tuple[str, ...] = ()
    ms: Mapping[str, float] = field(default_factory=dict)
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One committed token. `origin` is "target" or the drafter that proposed it. `text` can be shown at once:
    an incomplete UTF-8 character or a possible stop string is held back and comes with a later token. `place`
    is where the answer is behind it: the token that leaves the thought still has the mark that closes it.
    """

    request: int
    token: int
    text: str
    origin: str
    logprob: TokenLogprob | None = None
    place: Place = Place.ANSWER


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The last event of a request. `text` is the text that was held back until the end."""

    request: int
    reason: FinishReason
    text: str
    usage: Usage
    timings: Timings
    speculation: SpeculationStats
    error: str | None = None
    notice: str | None = None
    """Why the answer ended early, if it is usable up to there."""


Event: TypeAlias = TokenEvent | FinishEvent


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request, folded from its events. `origins[i]` is the origin of `tokens[i]`."""

    text: str
    tokens: tuple[int, ...]
    origins: tuple[str, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    speculation: SpeculationStats
    error: str | None = None
    notice: str | None = None


# --- rounds, for the planner ---------------------------------------------------------------------------


class Reason(StrEnum):
    """Why nothing was drafted for a request in a round."""

    MEASURING = "the cost of plain decoding is measured"
    BACK_OFF = (
        "no draft was attempted: recent attempts found nothing, or the request's budget covers none yet"
    )
    NO_ROOM = "no room for a draft: the answer is about to end, or the forward is full"
    SWITCHED_OFF = "switched off for this request"
    NOTHING_FOUND = "no drafter found anything to propose"
    NOT_WORTH = "no draft is expected to pay for its verification"
    TOO_RISKY = "the draft would cost more than the request's budget"
    SHARED = "the draft does not pay in a forward shared with other requests"
    NO_CELLS = "the KV cache had no room for the draft"
    FAILED = "the request ended with an error"


class Undrafted(StrEnum):
    """Why nothing is drafted at all, or nothing was for a request as a whole."""

    TURNED_OFF = "speculation is turned off"
    RECURRENT_STATE = "this model keeps a recurrent state, which cannot be rolled back to the accepted tokens"
    NO_DRAFTER = "none of the drafters asked for can be used"
    DRAFTERS_FAILED = "every drafter failed (see the notes)"
    NOT_DECODED = "no round that may draft has decoded yet"
    NOTHING_PAID = "no draft worth verifying was found for this request"


class Estimate(NamedTuple):
    """What a planner expected of a request's candidates.

    `gain`: the rate that the best of them reaches alone, relative to plain decoding (1.2 is 20 % faster);
    None where a draft is verified whatever it is expected to bring. `survival[i][k]`: of token k of candidate
    i.
    """

    gain: float | None
    survival: Sequence[Sequence[float]]


class Choice(NamedTuple):
    """What a planner decided for a request: a draft to verify, or None and the reason."""

    draft: Draft | None
    reason: Reason | None = None
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What the forward of a round carries beside drafts. `to_recompute`: rows of the requests decoding that
    are computed again. `idle_threads`: as `Model.idle_threads`. `adapters`: those of the requests decoding,
    "" for none, in order, each of which takes a pass of its own; empty if all have the usual one.
    """

    decoding: int
    prefill_rows: int
    depth: int  # the largest KV length of the requests decoding, in tokens
    to_recompute: int = 0
    idle_threads: int = 0
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """One round as it was measured: rows of the target's forward, and where the time went, in milliseconds.

    `draft_ms`: of each drafter that was called. `plan_ms`: the planner's `limits` and `choose`. `sample_ms`:
    choosing and committing tokens. `late_ms`: what learning from the round before took, after it.
    """

    load: Load
    rows: int
    draft_ms: Mapping[str, float]
    forward_ms: float
    sample_ms: float
    outcomes: tuple[tuple[int, Outcome], ...]  # by request id, of all that decoded
    plan_ms: float = 0.0
    late_ms: float = 0.0
