"""One request inside the engine: its history, sampler, text and counters, and what ends it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from foredraft.engine.detokenizer import TextStream
from foredraft.engine.prefix.disk import Fetch
from foredraft.engine.scoring import ScoringParams
from foredraft.engine.stats import RequestStats
from foredraft.errors import RequestError
from foredraft.images import keyed
from foredraft.protocols import RequestView, Tokenizer
from foredraft.sampling.sampler import RequestSampler
from foredraft.sampling.thought import Tracker, answer_guide, plan_of
from foredraft.sequences import repeated_length
from foredraft.types import FinishReason, Place, SamplingParams, Timings, Usage

MIN_REPEATED_TOKENS = 768
"""Tokens that have to be copies for `stop_repetition`: more than fifty rows of a dozen tokens each."""

MIN_COPIES = 8

MAX_PASSAGE_TOKENS = 256
"""The longest passage whose copies are looked for."""

REPETITION_CHECK_TOKENS = 64
"""Tokens of an answer after which repetition is looked for again: this costs 1 µs a token at any length."""


@dataclass(slots=True)
class Request:
    """A request from `add` to its finish event. `seq` is -1 until it is admitted to a sequence, and again
    while it waits because it was preempted. `deadline` is in seconds of the engine's clock.

    `computed` counts the tokens of its history that are in the KV cache; the last committed token never is.
    `scored` counts the tokens of its prompt that need no log-probability any more: the first has none.
    `thought` is where the answer is if its model thinks first, `reasoning` counts the thought's tokens.
    `fetch` is the prefix that is being read from the disk for it.
    """

    view: RequestView
    sampler: RequestSampler
    text: TextStream
    thought: Tracker | None
    end_tokens: frozenset[int]
    """The tokens that end it: the request's own stop tokens, and the model's unless it ignores them."""
    max_total: int
    priority: int = 0
    deadline: float | None = None
    max_draft: int = sys.maxsize
    seq: int = -1
    computed: int = 0
    cached: int = 0
    scored: int = sys.maxsize
    reasoning: int = 0
    fetch: Fetch | None = None
    finish: FinishReason | None = None
    error: str | None = None
    notice: str | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    admitted_at: float = 0.0
    first_token_at: float = 0.0
    finished_at: float = 0.0

    @property
    def id(self) -> int:
        return self.view.id

    def turn(self) -> tuple[int, int]:
        """What requests are sorted by: higher priority first, then the one that was added first."""
        return -self.priority, self.id

    @property
    def place(self) -> Place:
        """Where its answer is."""
        return Place.ANSWER if self.thought is None else self.thought.place

    @property
    def params(self) -> SamplingParams:
        return self.view.params

    @property
    def generated(self) -> int:
        return len(self.view.tokens) - self.view.prompt_length

    @property
    def pending(self) -> int:
        """Tokens of the history that are not in the KV cache yet: 1 while decoding."""
        return len(self.view.tokens) - self.computed

    @property
    def scoring(self) -> bool:
        """Whether log-probabilities of the prompt's tokens are still to be computed."""
        return self.scored < self.view.prompt_length

    @property
    def reusable(self) -> Sequence[int]:
        """The tokens whose cells may come from a cache: those whose logits are not needed any more. Rows of
        images are replaced by their keys.
        """
        return self.view.tokens[: self.scored] if self.scoring else self.keys

    @property
    def keys(self) -> Sequence[int]:
        """Its tokens as caches know them (`images.keyed`)."""
        return keyed(self.view.tokens, self.view.images)

    def wanted(self, count: int) -> int:
        """How many of its next `count` rows have to return logits: the last ones."""
        end = self.computed + count
        first = self.scored - 1 if self.scoring else len(self.view.tokens) - 1
        return max(0, end - max(self.computed, first))

    @property
    def decoding(self) -> bool:
        return self.pending == 1 and self.generated > 0

    @property
    def room(self) -> int:
        """The most draft tokens that could still be used: the last token allowed is the target's own."""
        return min(self.max_total - len(self.view.tokens) - 1, self.max_draft)

    def accept(self, token: int) -> str:
        """Commit a token: returns the text to show, and sets `finish` if the request is over with it."""
        if not self.generated:
            self.first_token_at = perf_counter()
        self.view.tokens.append(token)
        shown = self.text.feed(token, scan=self._in_answer(token))
        if self._ends(token) or self.text.stopped:
            self.finish = FinishReason.STOP
        elif len(self.view.tokens) >= self.max_total:
            self.finish = FinishReason.LENGTH
        elif self.params.stop_repetition and self._repeats():
            self.finish = FinishReason.REPETITION
        if self.finish is not None:
            self.finished_at = perf_counter()
        return shown

    def _in_answer(self, token: int) -> bool | None:
        """Whether stop strings count in this token's text; None if it may turn out to be a thought's mark."""
        if self.thought is None or self.thought.advance(token):
            return True
        if self.thought.place is Place.BEFORE and not self.thought.forced:
            return None if self.thought.undecided else True
        self.reasoning = self.generated
        return False

    def fail(self, error: str) -> None:
        """End the request with an error."""
        self.finish, self.error = FinishReason.ERROR, error

    def end_early(self, notice: str) -> None:
        """End the request where no token can follow: what was generated until now is the answer."""
        self.finish, self.notice = FinishReason.LENGTH, notice

    def stop(self, notice: str) -> None:
        """End the request from outside, unless it has ended: what was generated until now is the answer."""
        if self.finish is None:
            self.finish, self.notice = FinishReason.STOPPED, notice

    def _ends(self, token: int) -> bool:
        return token in self.end_tokens or len(self.view.tokens) == self.sampler.completed_at

    def _repeats(self) -> bool:
        due = self.generated >= MIN_REPEATED_TOKENS and self.generated % REPETITION_CHECK_TOKENS == 0
        return due and repeats(self.view.tokens, self.view.prompt_length)

    def usage(self) -> Usage:
        accepted, drafted = self.stats.accepted, self.stats.drafted
        return Usage(
            self.view.prompt_length,
            self.generated,
            self.cached,
            accepted,
            drafted - accepted,
            self.reasoning,
        )

    def timings(self) -> Timings:
        end = self.finished_at or perf_counter()
        first = self.first_token_at or end
        return Timings(
            prompt_n=max(0, min(self.computed, self.view.prompt_length) - self.cached),
            prompt_ms=1e3 * (first - self.admitted_at) if self.admitted_at else 0.0,
            predicted_n=self.generated,
            predicted_ms=1e3 * (end - first),
            draft_n=self.stats.drafted,
            draft_n_accepted=self.stats.accepted,
        )


def repeats(tokens: Sequence[int], begin: int = 0) -> bool:
    """Whether `tokens[begin:]` ends with at least `MIN_COPIES` exact copies of one passage, together at least
    `MIN_REPEATED_TOKENS` long. It depends on the tokens alone, not on how many of them came in one round.
    """
    length = repeated_length(
        tokens, copies=MIN_COPIES, least=MIN_REPEATED_TOKENS, longest=MAX_PASSAGE_TOKENS, begin=begin
    )
    return length is not None


def check_scheduling(priority: object, deadline_s: object, max_draft: object) -> None:
    """Raises RequestError for an invalid priority, deadline or cap on drafts."""
    if max_draft is not None and (
        not isinstance(max_draft, int) or isinstance(max_draft, bool) or max_draft < 0
    ):
        raise RequestError(
            f"max_draft={max_draft!r} is not valid.", hint="A cap is a whole number of tokens; 0 is none."
        )
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise RequestError(
            f"priority={priority!r} is not valid.", hint="A priority is a whole number; higher goes first."
        )
    if deadline_s is None:
        return
    if not isinstance(deadline_s, int | float) or isinstance(deadline_s, bool) or not deadline_s > 0:
        raise RequestError(
            f"deadline_s={deadline_s!r} is not valid.", hint="A deadline is a number of seconds above 0."
        )


def make_request(view: RequestView, tokenizer: Tokenizer, *, context_length: int, vocab_size: int) -> Request:
    """A request that is not admitted yet. Raises RequestError for a constraint that cannot be used and for
    images in a prompt to be scored, and MissingDependencyError.
    """
    params = view.params
    plan = plan_of(params, tokenizer)
    limit = context_length
    if isinstance(params, ScoringParams) and not params.answers:
        limit = view.prompt_length
    elif params.max_tokens is not None:
        limit = min(limit, view.prompt_length + params.max_tokens)
    scored = isinstance(params, ScoringParams) and params.score_prompt
    if scored and view.images:
        raise RequestError("A prompt with images cannot be scored.", hint="Score the text alone.")
    return Request(
        view=view,
        sampler=RequestSampler(
            params,
            seed=view.seed,
            vocab_size=vocab_size,
            end_tokens=tokenizer.end_tokens,
            prompt=view.tokens,
            guide=answer_guide(params, tokenizer),
        ),
        text=TextStream(tokenizer, params.stop),
        thought=None if plan is None else Tracker.begin(plan),
        end_tokens=frozenset(params.stop_tokens).union(() if params.ignore_eos else tokenizer.end_tokens),
        max_total=limit,
        scored=1 if scored else view.prompt_length,
    )
