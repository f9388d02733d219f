"""Follows an answer that begins with a thought: where the thought is, how it ends, what must follow it.

All of it is a function of the committed tokens, so it is the same with drafts and without. A budget ends a
thought after a number of its tokens, or up to three later where a character is not whole: the tokens of the
template's own ending then follow, drafted or not. A constraint applies after the reasoning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from foredraft.protocols import Tokenizer
from foredraft.sampling.constraint import compile_constraint
from foredraft.sampling.guide import Guide, select
from foredraft.types import Draft, Logits, Place, SamplingParams, Thinking

_MARK: Final = "\x02"


def spelled(tokenizer: Tokenizer, token: int) -> bytes:
    """The bytes of a token; of a control token, which has none, a name that no text has."""
    return tokenizer.token_bytes(token) or b"\xff%d\xff" % token


def tokens_of(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The tokens of a text behind other text, with control tokens."""
    tokens = tokenizer.encode(text, special=True)
    if tokens and tokenizer.token_bytes(tokens[0]).startswith(b" ") and not text.startswith(" "):
        # This tokenizer adds a space before a text: encode it after another text.
        mark, marked = tokenizer.encode(_MARK), tokenizer.encode(_MARK + text, special=True)
        if marked[: len(mark)] == mark:
            return tuple(marked[len(mark) :])
    return tuple(tokens)


def spellings(tokenizer: Tokenizer, mark: str) -> tuple[bytes, ...]:
    """How a mark can be written: as text, and with control tokens."""
    special = b"".join(spelled(tokenizer, token) for token in tokens_of(tokenizer, mark))
    return tuple(dict.fromkeys((mark.encode(), special)))


@dataclass(frozen=True, slots=True)
class Plan:
    """A request's thought in tokens. `opener`: the token that begins it where a constraint applies to the
    rest; None if it cannot begin then. `opened`: those that then follow. `ending`: what ends a thought whose
    budget is used up. `bound`: a constraint applies behind the thought.
    """

    thinking: Thinking
    openings: tuple[bytes, ...]
    closings: tuple[bytes, ...]
    spell: Callable[[int], bytes]
    encode: Callable[[str], tuple[int, ...]]
    ending: tuple[int, ...]
    opener: int | None = None
    opened: tuple[int, ...] = ()
    budget: int | None = None
    bound: bool = False


def plan_of(params: SamplingParams, tokenizer: Tokenizer) -> Plan | None:
    """The plan of a request; None if its model does not think."""
    thinking = params.thinking
    if thinking is None:
        return None
    opening = tokens_of(tokenizer, thinking.opening)
    # The first of several ordinary tokens could begin any other answer, too.
    begins = len(opening) == 1 or (bool(opening) and not tokenizer.token_bytes(opening[0]))
    return Plan(
        thinking,
        spellings(tokenizer, thinking.opening),
        spellings(tokenizer, thinking.closing),
        lambda token: spelled(tokenizer, token),
        lambda text: tokens_of(tokenizer, text),
        tokens_of(tokenizer, thinking.ending),
        opener=opening[0] if begins else None,
        opened=opening[1:],
        budget=params.reasoning_budget,
        bound=params.constraint is not None,
    )


@dataclass(slots=True)
class Tracker:
    """The place of an answer after its tokens. `forced`: the tokens that must come next. `count`: tokens in
    the thought.
    """

    plan: Plan
    place: Place = Place.BEFORE
    forced: tuple[int, ...] = ()
    count: int = 0
    _text: bytes = field(default=b"", repr=False)

    @classmethod
    def begin(cls, plan: Plan) -> Tracker:
        """At the beginning of an answer."""
        tracker = cls(plan)
        if plan.thinking.begun:
            tracker._open(())
        return tracker

    def copy(self) -> Tracker:
        """A tracker at the same place."""
        return Tracker(self.plan, self.place, self.forced, self.count, self._text)

    @property
    def undecided(self) -> bool:
        """Whether the text so far may turn out to be the opening."""
        return self.place is Place.BEFORE and bool(self._text.strip())

    def advance(self, token: int) -> bool:
        """Take the next token. Whether it belongs to the answer."""
        if self.place is Place.ANSWER:
            return True
        if self.forced:
            self._take_forced(token)
            return False
        if self.place is Place.BEFORE:
            return self._before(token)
        self.count += 1
        self._text += self.plan.spell(token)
        rest = self._behind_closing(self._text)
        if rest is not None:
            self._close(rest)
            return False
        keep = max(map(len, self.plan.closings)) - 1
        self._text = self._text[-keep:] if keep else b""
        self._spend()
        return False

    def overshoots(self, token: int) -> bool:
        """Whether a token would end the thought and begin the answer at once."""
        text = self._text + self.plan.spell(token)
        rest = self._behind_closing(text)
        return rest is not None and bool(rest.strip()) and not self._suffix().encode().startswith(rest)

    def _take_forced(self, token: int) -> None:
        self.forced = self.forced[1:] if token == self.forced[0] else ()
        if self.forced:
            return
        if self.place is Place.BEFORE:
            self._open(())
        else:
            self.place = Place.ANSWER

    def _before(self, token: int) -> bool:
        plan = self.plan
        if plan.bound:
            if token != plan.opener:
                self.place = Place.ANSWER
                return True
            self._open(plan.opened)
            return False
        self._text += plan.spell(token)
        begins = self._text.lstrip()
        mark = next((mark for mark in plan.openings if begins.startswith(mark)), None)
        if mark is not None:
            self._open((), begins[len(mark) :])
        elif not any(mark.startswith(begins) for mark in plan.openings):
            self.place = Place.ANSWER
            return True
        return False

    def _open(self, rest: tuple[int, ...], behind: bytes = b"") -> None:
        """The opening is written, but for these tokens, or with this behind it."""
        self.forced, self._text = rest, behind
        if not rest:
            self.place = Place.INSIDE
            self._spend()

    def _spend(self) -> None:
        over = -1 if self.plan.budget is None else self.count - self.plan.budget
        if over >= 3 or (over >= 0 and not _is_cut(self._text)):
            self.place, self.forced = Place.ENDING, self.plan.ending

    def _behind_closing(self, text: bytes) -> bytes | None:
        """What follows the first closing in a text; None if there is none."""
        ends = [at + len(mark) for mark in self.plan.closings if (at := text.find(mark)) >= 0]
        return text[min(ends) :] if ends else None

    def _suffix(self) -> str:
        return self.plan.thinking.ending.partition(self.plan.thinking.closing)[2]

    def _close(self, rest: bytes) -> None:
        """The thought is over, and `rest` stands behind it."""
        self._text = b""
        self.place = Place.ANSWER
        suffix = self._suffix() if self.plan.bound else ""
        written = suffix.encode().startswith(rest)
        suffix = suffix[len(rest.decode()) :] if written else suffix.lstrip()
        if suffix and (tokens := self.plan.encode(suffix)):
            self.place, self.forced = Place.ENDING, tokens


def _is_cut(text: bytes) -> bool:
    """Whether a text ends within a character of UTF-8, of which at most three bytes are missing."""
    for behind, byte in enumerate(reversed(text[-3:]), 1):
        if not 0x80 <= byte < 0xC0:
            return 0xC2 <= byte < 0xF5 and behind < 2 + (byte >= 0xE0) + (byte >= 0xF0)
    return False


class ThoughtGuide:
    """A `Guide` of an answer that begins with a thought; `inner` is that of its constraint, if it has one."""

    def __init__(self, plan: Plan, tokenizer: Tokenizer, inner: Guide | None) -> None:
        self._at = Tracker.begin(plan)
        self._inner = inner
        self._ends = tokenizer.end_tokens if inner is not None else frozenset()
        self._long = _LongTokens.of(tokenizer, plan) if inner is not None else _NONE

    @property
    def complete(self) -> bool:
        """Whether nothing may follow."""
        return self._inner is not None and self._at.place is Place.ANSWER and self._inner.complete

    def advance(self, tokens: Sequence[int]) -> None:
        """See Guide."""
        for number, token in enumerate(tokens):
            if self._at.place is Place.ANSWER:
                if self._inner is not None:
                    self._inner.advance(tokens[number:])
                return
            if self._at.advance(token) and self._inner is not None:
                self._inner.advance((token,))

    def forced(self) -> list[int]:
        """See Guide."""
        if self._at.forced:
            return list(self._at.forced)
        if self._inner is None or self._at.place is not Place.ANSWER:
            return []
        return self._inner.forced()

    def allows(self, token: int) -> bool:
        """See Guide."""
        at = self._at
        if at.forced:
            return token == at.forced[0]
        if self._inner is None:
            return True
        if at.place is Place.INSIDE:
            return token not in self._ends and not at.overshoots(token)
        if at.place is Place.BEFORE:
            opens = token == at.plan.opener
            return opens or (not self._inner.forced() and self._inner.allows(token))
        return self._inner.allows(token)

    def mask(self, row: Logits, extra: Sequence[int] = ()) -> Logits:
        """See Guide."""
        at = self._at.copy() if extra else self._at
        for number, token in enumerate(extra):
            if at.place is Place.ANSWER or at.advance(token):
                return row if self._inner is None else self._inner.mask(row, extra[number:])
        if at.forced:
            return _only(row, at.forced[0])
        if self._inner is None:
            return row
        if at.place is Place.INSIDE:
            banned = [*self._ends, *self._long.overshooting(at)]
            masked = row.copy()
            masked[banned] = -np.inf
            return masked
        masked = self._inner.mask(row)
        if at.place is Place.BEFORE and at.plan.opener is not None:
            masked = masked.copy() if masked is row else masked
            masked[at.plan.opener] = row[at.plan.opener]
        return masked

    # --- drafts --------------------------------------------------------------------------------------

    def prune(self, draft: Draft) -> Draft | None:
        """See Guide. A draft ends where other tokens are forced."""
        if draft.probs is not None:
            return draft
        if self._at.place is Place.ANSWER:
            return draft if self._inner is None else self._inner.prune(draft)
        if draft.parents is not None:
            return select(draft, self._useful_nodes(draft.tokens, draft.parents))
        useful = self._useful(draft)
        return draft.cut(useful) if useful else None

    def _useful(self, draft: Draft) -> int:
        at = self._at.copy()
        for number, token in enumerate(draft.tokens):
            in_thought = at.place is not Place.ANSWER and self._may_follow(at, token)
            if at.place is not Place.ANSWER and not in_thought:
                return number
            if at.advance(token):
                if self._inner is None:
                    return len(draft)
                rest = self._inner.prune(Draft(draft.tokens[number:], draft.source))
                return number + (len(rest) if rest else 0)
        return len(draft)

    def _useful_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """The nodes of a tree that could be accepted in the thought, and those behind it if anything may be
        there.
        """
        reached: dict[int, Tracker] = {-1: self._at}
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            if parent not in reached:
                continue
            at = reached[parent].copy()
            if at.place is not Place.ANSWER and not self._may_follow(at, token):
                continue
            if not at.advance(token) or self._inner is None:
                reached[node] = at
        return [node for node in reached if node >= 0]

    def _may_follow(self, at: Tracker, token: int) -> bool:
        if at.forced:
            return token == at.forced[0]
        return self._inner is None or at.place is Place.BEFORE or token not in self._ends


def _only(row: Logits, token: int) -> Logits:
    """The row with this token alone, also if it is banned otherwise."""
    masked: Logits = np.full_like(row, -np.inf)
    masked[token] = row[token] if row[token] > -np.inf else 0.0
    return masked


class _LongTokens:
    """The tokens of a vocabulary that may end a thought and begin the answer at once."""

    def __init__(self, tokens: Sequence[int], whole: Sequence[int], marks: Sequence[bytes]) -> None:
        self._tokens = tokens
        self._whole = whole
        self._marks = marks

    def overshooting(self, at: Tracker) -> list[int]:
        """Those that do so at this place."""
        begun = any(
            mark.startswith(at._text[-length:]) for mark in self._marks for length in range(1, len(mark))
        )
        return [token for token in (self._tokens if begun else self._whole) if at.overshoots(token)]

    @classmethod
    def of(cls, tokenizer: Tokenizer, plan: Plan) -> _LongTokens:
        """Those of a vocabulary, which are looked for once for each pair of marks."""
        try:
            known = _known.setdefault(tokenizer, {})
        except TypeError:  # a tokenizer without weak references
            known = {}
        if plan.closings not in known:
            lasts = {mark[-1:] for mark in plan.closings}
            texts = ((token, tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))
            found = {token: text for token, text in texts if any(last in text[:-1] for last in lasts)}
            whole = [token for token, text in found.items() if any(mark in text for mark in plan.closings)]
            known[plan.closings] = cls(list(found), whole, plan.closings)
        return known[plan.closings]


_NONE: Final = _LongTokens((), (), ())
_known: WeakKeyDictionary[Tokenizer, dict[tuple[bytes, ...], _LongTokens]] = WeakKeyDictionary()


def answer_guide(params: SamplingParams, tokenizer: Tokenizer) -> Guide | ThoughtGuide | None:
    """The guide of an answer with these parameters; None if any token may follow any other.

    Raises what `compile_constraint` raises.
    """
    inner = None
    if params.constraint is not None:
        inner = compile_constraint(params.constraint, tokenizer, ignore_eos=params.ignore_eos)
    plan = plan_of(params, tokenizer)
    if plan is None or (inner is None and plan.budget is None):
        return inner
    return ThoughtGuide(plan, tokenizer, inner)
