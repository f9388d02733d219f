"""The state of speculation, as GET /v1/speculation answers it: numbers and names of drafters."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from foredraft.server.console.shapes import Reply


class RequestLoad(Reply):
    """Requests in the engine."""

    running: int
    waiting: int


class DrafterState(Reply):
    """What a drafter did since the model was loaded: drafts verified, tokens, milliseconds of drafting."""

    drafts: int
    drafted: int
    accepted: int
    ms: float


class DraftProposal(Reply):
    """A draft that was proposed: `length` tokens, at most `width` of them at one depth."""

    drafter: str
    length: int
    width: int


class RequestDecision(Reply):
    """What a round did for one request: the drafters asked, their drafts, and the one that was verified.
    `drafter` None and `drafted` 0: none was, for the `reason`. `committed`: accepted tokens and the model's
    own. `expected_gain`: rate relative to plain decoding, None where none was estimated. `reason_code`: the
    reason for programs, such as `nothing_found`.
    """

    asked: list[str]
    candidates: list[DraftProposal]
    drafter: str | None
    drafted: int
    width: int
    accepted: int
    committed: int
    expected_gain: float | None
    reason: str | None
    reason_code: str | None


class RoundDecision(Reply):
    """One round: its number, rows of its forward, milliseconds by `draft`, `verify`, `sample`, `other`."""

    round: int
    rows: int
    ms: dict[str, float]
    requests: list[RequestDecision]


class RecentRounds(Reply):
    """Totals of the `decisions`. `depth`: tokens in the KV cache of the longest request."""

    rounds: int
    tokens: int
    ms: float
    depth: int
    estimated_speedup: float | None


class SpeculationSummary(Reply):
    """What speculation does at the moment, for the requests that run. `code`:

    - `off`: it is turned off. `no_drafters`: it cannot run; `reason` and `reason_code` say why.
    - `idle`: no request runs. `measuring`: the first rounds are measured, or a prompt is read.
    - `drafting`: most by `drafter`. `plain`: nothing was drafted in the last rounds, mostly for the `reason`.

    `tokens_per_forward`: of a request, over its last rounds. `speedup`: as `RecentRounds.estimated_speedup`.
    """

    code: Literal["off", "no_drafters", "idle", "measuring", "drafting", "plain"]
    drafter: str | None
    tokens_per_forward: float | None
    speedup: float | None
    reason: str | None
    reason_code: str | None


class AdapterSpeculation(Reply):
    """What was drafted for the requests of one adapter that are over. `tokens_per_forward`: of a request;
    it and `acceptance_rate` are null where nothing was decoded or drafted.
    """

    requests: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    tokens_per_forward: float | None


class ModelSpeculation(Reply):
    """The state of one model. `configured`: the speculation string. `head`: the head that drafts. `exact`:
    texts are the same with speculation, for the reason `exact_reason`. `reason`: why nothing is drafted at
    the moment. `notes`: what to expect of the model as it was loaded, and drafters that were left out.
    `decisions`: of the last rounds, the oldest first.
    `rounds`, `cost_curve_ms`, `plain_ms` and `draft_token_ms` are of `auto`: rounds measured; milliseconds of
    a forward with all threads by depth of the KV cache and by rows, of a plain one as lately, and of a token
    of each draft model that was measured. `idle_threads`: those that the last forward left to others.
    `adapters`: by name, "" for the model alone; empty of a model without any.
    Requests whose drafting is switched off are in none of the decisions and figures of rounds.
    """

    configured: str
    head: str | None
    requests: RequestLoad
    kv_cache_tokens: int
    exact: bool
    exact_reason: str
    reason: str | None
    summary: SpeculationSummary
    notes: list[str]
    drafters: dict[str, DrafterState]
    decisions: list[RoundDecision]
    recent: RecentRounds | None
    rounds: int | None
    cost_curve_ms: dict[str, dict[str, float]] | None
    plain_ms: float | None
    draft_token_ms: dict[str, float]
    idle_threads: int
    adapters: dict[str, AdapterSpeculation]
    tokens_generated: int


class Speculation(Reply):
    """The state of each loaded model, by the model's name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, ModelSpeculation]
