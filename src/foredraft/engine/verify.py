"""Applying a request's verification rule to the logits of its rows."""

from __future__ import annotations

from foredraft.engine.request import Request
from foredraft.sampling.processors import is_greedy
from foredraft.types import Draft, Logits, SamplingParams, Verdict
from foredraft.verification.block import verify_block
from foredraft.verification.chain import verify_chain
from foredraft.verification.rejection import verify_rejection
from foredraft.verification.tree import verify_tree


def keeps_bytes(params: SamplingParams) -> bool:
    """Whether drafts are accepted by the match rule: greedy decoding leaves the others nothing to sample."""
    return params.verify == "match" or is_greedy(params)


def verify(request: Request, draft: Draft | None, logits: Logits) -> Verdict:
    """What the request commits. `logits` has one row for its last token and one for each draft token.

    The sampler has advanced by every token of the verdict afterwards.
    """
    sampler = request.sampler

    def choose(row: int) -> int:
        token = sampler.choose(logits[row])
        sampler.advance(token)
        return token

    if draft is None:
        return Verdict((choose(0),), ())
    if draft.parents is not None:
        return verify_tree(draft.tokens, draft.parents, choose)
    if keeps_bytes(request.params):
        return verify_chain(draft.tokens, choose)
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
