"""Applying a request's verification rule to the logits of its rows, and whether that keeps its bytes."""

from __future__ import annotations

from foredraft.engine.request import Request
from foredraft.errors import NoNextTokenError
from foredraft.sampling.processors import is_greedy
from foredraft.sampling.sampler import RequestSampler
from foredraft.types import Capabilities, Draft, Logits, SamplingParams, Verdict
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
