"""From the logits of a forward to what requests commit: verification, log-probabilities, rollback, prompts
that are read to their end.
"""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.engine.drafting import Drafters
from foredraft.engine.request import Request
from foredraft.engine.scoring import PromptEvent
from foredraft.errors import ForedraftError, NoNextTokenError
from foredraft.protocols import Model
from foredraft.sampling.processors import is_greedy
from foredraft.sampling.sampler import RequestSampler
from foredraft.types import (
    TARGET,
    Capabilities,
    Draft,
    Event,
    FinishReason,
    Logits,
    Outcome,
    SamplingParams,
    TokenEvent,
    Verdict,
)
from foredraft.verification.block import verify_block
from foredraft.verification.chain import verify_chain
from foredraft.verification.rejection import verify_rejection
from foredraft.verification.tree import verify_tree


def keeps_bytes(params: SamplingParams) -> bool:
    """Whether drafts are accepted by the match rule: greedy decoding leaves the others nothing to sample."""
    return params.verify == "match" or is_greedy(params)


def exactness(request: Request, capabilities: Capabilities) -> tuple[bool, str]:
    """(whether the tokens are those of plain decoding, how that is known or why it is not so)."""
    if not keeps_bytes(request.params):
        return False, f"verify={request.params.verify} keeps the distribution, not the bytes"
    note = capabilities.invariance_note
    if not capabilities.batch_invariant and request.stats.preemptions:
        note = f"{note}; read again after preemption, in batches of other sizes"
    return capabilities.batch_invariant, note


def accept(
    request: Request, draft: Draft | None, rows: Logits, events: list[Event], model: Model
) -> Verdict | None:
    """Verify, commit and roll back, adding to `events`. None if this request cannot go on: it ends with what
    it has where its constraint leaves no token, and with an error else; the others are not affected.
    """
    try:
        verdict = verify(request, draft, rows)
        events += accept_tokens(request, draft, verdict, rows)
        _roll_back(request, draft, verdict, model)
    except ForedraftError as error:
        if isinstance(error, NoNextTokenError) and request.params.constraint is not None:
            request.end_early(str(error))
        else:
            request.fail(str(error))
        return None
    return verdict


def _roll_back(request: Request, draft: Draft | None, verdict: Verdict, model: Model) -> None:
    """Leave in the KV cache what is committed, less the last token: its row was never computed."""
    start, request.computed = request.computed, len(request.view.tokens) - 1
    if draft is None:
        return
    if draft.parents is not None:
        model.keep_path(request.seq, start, [0, *(node + 1 for node in verdict.path)])
    model.truncate(request.seq, request.computed)


def finish_prefill(
    prefill: Sequence[tuple[Request, int]], logits: Logits, drafters: Drafters, model: Model
) -> list[Event]:
    """Commit the first token of each request whose prompt is read to its end; `prefill`: (request, rows)."""
    events: list[Event] = []
    row = 0
    for request, count in prefill:
        wanted = request.wanted(count)
        rows, row = logits[row : row + wanted], row + wanted
        if request.scoring and not score_prompt(request, count, rows, events):
            continue
        request.computed += count
        kept = len(request.view.tokens)
        if request.computed < kept:
            continue
        if kept >= request.max_total:
            request.finish = FinishReason.LENGTH  # nothing was to be generated
        elif accept(request, None, rows[-1:], events, model) is not None:
            drafters.observe(request.view, Outcome(kept, tuple(request.view.tokens[kept:])))
    return events


def score_prompt(request: Request, count: int, rows: Logits, events: list[Event]) -> bool:
    """Add to `events` the log-probabilities of the prompt's tokens that the logits of its next `count` rows
    are about. False if this request cannot go on: it ends with an error.
    """
    end = min(request.computed + count + 1, request.view.prompt_length)
    tokens = request.view.tokens[request.scored : end]
    try:
        for token, row in zip(tokens, rows, strict=False):  # the prompt's last row is about the answer
            logprob = request.sampler.logprob(row, token)
            events.append(PromptEvent(request.id, token, "", TARGET, logprob))
    except ForedraftError as error:
        request.fail(str(error))
        return False
    request.scored = max(request.scored, end)
    return True


def accept_tokens(request: Request, draft: Draft | None, verdict: Verdict, rows: Logits) -> list[Event]:
    """Commit a verdict's tokens up to the one that ends the request, if any: nothing is kept after it."""
    events: list[Event] = []
    for i, token in enumerate(verdict.tokens):
        origin = draft.source if draft and i < verdict.accepted else TARGET
        logprob = None
        if request.params.logprobs is not None:
            logprob = request.sampler.logprob(rows[verdict.row_of(i)], token)
        text = request.accept(token)
        events.append(TokenEvent(request.id, token, text, origin, logprob, request.place))
        if request.finish is not None:
            break
    return events


def verify(request: Request, draft: Draft | None, logits: Logits) -> Verdict:
    """What the request commits. `logits` has one row for its last token and one for each draft token.

    The sampler has advanced by every token of the verdict afterwards. Raises NoNextTokenError where no token
    may come next; within a draft what comes before that is committed first, as without one.
    """
    if draft is None or draft.parents is not None or keeps_bytes(request.params):
        return _walk(request.sampler, draft, logits)
    sampler = request.sampler
    rule = verify_rejection if request.params.verify == "rejection" else verify_block
    verdict = rule(
        draft.tokens,
        draft.probs,
        lambda row: sampler.distribution(logits[row], draft.tokens[:row]),
        sampler.uniform_at,
        lambda row, probs: sampler.pick(probs, row),
    )
    for token in verdict.tokens:
        sampler.advance(token)
    return verdict


def _walk(sampler: RequestSampler, draft: Draft | None, logits: Logits) -> Verdict:
    """The match rule."""
    chosen: list[int] = []
    rows: list[int] = []

    def choose(row: int) -> int:
        rows.append(row)
        token = sampler.choose(logits[row])
        sampler.advance(token)
        chosen.append(token)
        return token

    try:
        if draft is None:
            return Verdict((choose(0),), ())
        if draft.parents is not None:
            return verify_tree(draft.tokens, draft.parents, choose)
        return verify_chain(draft.tokens, choose)
    except NoNextTokenError:
        if draft is None or not chosen:
            raise
        return Verdict(tuple(chosen), _path_to(rows[len(chosen) - 1] - 1, draft))


def _path_to(node: int, draft: Draft) -> tuple[int, ...]:
    """The nodes of a draft from its first to this one; none for -1."""
    if draft.parents is None:
        return tuple(range(node + 1))
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = draft.parents[node]
    return tuple(reversed(path))
