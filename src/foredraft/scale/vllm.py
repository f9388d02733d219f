"""Foredraft's drafters and planner inside vLLM, which loads them by its hook for a proposer of one's own::

    vllm serve MODEL --speculative-config \
        '{"method": "custom_class", "model": "foredraft.scale.vllm.Proposer", "num_speculative_tokens": 16}'

vLLM computes, samples and verifies; after each of its forwards it asks what to verify in the next. It says
neither what was accepted nor what a forward took. What was accepted follows from the tokens that came; a
forward takes the time between two calls, less what is spent here. That holds vLLM's own work beside the
forward, as a plain round has it, too. Not measured are a forward in which a prompt was read, and time in
which vLLM made no calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.util import Finalize
from time import perf_counter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from foredraft.engine.drafting import Drafters
from foredraft.engine.stats import PlainRounds, RequestStats
from foredraft.errors import ForedraftError
from foredraft.planner import AutoPlanner, StaticPlanner
from foredraft.protocols import Planner, RequestView
from foredraft.registry import create_drafter
from foredraft.scale.vllm_config import VllmConfig, read
from foredraft.scale.vllm_context import NOTE, capabilities, drafter_context
from foredraft.scale.vllm_requests import Known, Requests, Row
from foredraft.types import (
    Choice,
    Draft,
    Load,
    Outcome,
    Reason,
    Round,
    SpeculationStats,
    Undrafted,
)

REPORT_S = 60.0
"""Seconds between two lines of statistics in vLLM's log."""

GREEDY_ONLY = (
    "On processors vLLM verifies drafts with temperatures, top_k and top_p that it never wrote to memory: "
    "texts are right only if every request has temperature 0. Turn speculation off for others."
)
"""vLLM 0.32 and 0.33, with any proposer: `_expand_kernel_impl` writes to a copy that it drops. All rows of a
forward are concerned if one is sampled.
"""

logger = logging.getLogger("vllm.foredraft")
"""Below vLLM's own, so that it is shown as vLLM's messages are."""

Integers = npt.NDArray[np.integer]


class Hook(Protocol):
    """A proposer as vLLM 0.32 and 0.33 call it. `sampled_token_ids`: for each row the tokens that were just
    sampled, none in a row whose prompt is not read to its end. `num_tokens_no_spec`, shape (most rows,): how
    many tokens a row holds, with these. `token_ids_cpu`: shape (most rows, most tokens). Returns for each row
    what to verify next.
    """

    def load_model(self, *args: object, **kwargs: object) -> None: ...
    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: Integers,
        token_ids_cpu: Integers,
        slot_mappings: object = None,
    ) -> list[list[int]]: ...


@dataclass(slots=True)
class _Pending:
    """What the last call planned for the forward that came after it. `left`: when it returned, in seconds."""

    draft_ms: Mapping[str, float] = field(default_factory=dict)
    plan_ms: float = 0.0
    late_ms: float = 0.0
    left: float = 0.0


class Proposer:
    """The class that vLLM loads. What it learns is kept while the process lives. `clock` gives seconds.

    Raises ConfigError for settings of vLLM that cannot work, SpeculationStringError for drafters that cannot.
    """

    def __init__(self, vllm_config: VllmConfig, *, clock: Callable[[], float] = perf_counter) -> None:
        self._setting = setting = read(vllm_config)
        self._clock = clock
        context = drafter_context(setting)
        self._drafters = Drafters(
            [create_drafter(stage, context) for stage in setting.stages],
            context.target.vocab_size,
            placeholder=setting.vocabulary,
            clock=clock,
            late=setting.store is None,  # a store gets every text
        )
        adaptive = setting.speculation.adaptive
        self._planner: Planner = AutoPlanner(capabilities(setting)) if adaptive else StaticPlanner()
        self._stats = RequestStats()
        self._requests = Requests(
            setting.vocabulary, 2 * setting.requests, self._stats, self._start, self._stop
        )
        self._plain_rounds = PlainRounds()
        self._pending = _Pending()
        self._reason: str | None = Undrafted.NOT_DECODED
        self._failed = ""
        self._reported, self._reported_rounds = clock(), 0
        if setting.processor and setting.stages:
            logger.warning(GREEDY_ONLY)
        if setting.store is not None:
            # vLLM never calls `close`, and `atexit` does nothing in a process that was forked.
            Finalize(None, self.close, exitpriority=1)

    def __len__(self) -> int:
        """How many requests are known."""
        return len(self._requests)

    def load_model(self, *args: object, **kwargs: object) -> None:
        """Nothing to load; vLLM calls this on processors."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: Integers,
        token_ids_cpu: Integers,
        slot_mappings: object = None,  # noqa: ARG002
    ) -> list[list[int]]:
        """What to verify in the next forward, for each row; see `Hook`. It never raises: after an error,
        which is logged, nothing is proposed any more, and vLLM goes on without drafts.
        """
        nothing: list[list[int]] = [[] for _ in sampled_token_ids]
        if self._failed or not self._setting.stages:
            return nothing
        try:
            return self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, nothing)
        except Exception as error:
            self._failed = error.message if isinstance(error, ForedraftError) else repr(error)
            logger.exception("Foredraft failed, and proposes nothing any more; vLLM goes on without it.")
            return nothing

    def statistics(self) -> SpeculationStats:
        """What was drafted and accepted since the start, of all requests: as in Foredraft's answers."""
        setting, reason = self._setting, self._reason
        if self._failed:
            reason = f"an error: {self._failed}"
        elif setting.speculation.off:
            reason = Undrafted.TURNED_OFF
        elif not self._drafters:
            reason = Undrafted.DRAFTERS_FAILED
        return self._stats.summary(
            configured=str(setting.speculation),
            reason=reason,
            exact=(False, NOTE),
            notes=tuple(self._drafters.notes),
        )

    def close(self) -> None:
        """Log the statistics, and keep what is kept."""
        self._report()
        self._requests.forget_all()
        self._drafters.close()

    # --- a call -----------------------------------------------------------------------------------------

    def _propose(
        self, sampled: list[list[int]], lengths: Integers, tokens: Integers, drafts: list[list[int]]
    ) -> list[list[int]]:
        began = self._clock()
        rows = self._requests.find(sampled, lengths, tokens)
        found = self._clock()
        prompts = sum(int(lengths[place]) for place, its in enumerate(sampled) if not its)
        self._learn(rows, began, prompt=bool(prompts))
        learnt = self._clock()
        going = [row.request for row in rows if row.sampled[-1] not in self._setting.end_tokens]
        draft_ms = self._choose(going, prompts)
        for row in rows:
            if row.request.draft is not None:
                drafts[row.place] = list(row.request.draft.tokens)
        self._requests.forget_idle()
        left = self._clock()
        plan_ms = 1e3 * (left - learnt + found - began) - sum(draft_ms.values())
        self._pending = _Pending(draft_ms, plan_ms, 1e3 * (learnt - found), left)
        if left - self._reported >= REPORT_S:
            self._report()
        return drafts

    def _start(self, view: RequestView) -> None:
        self._drafters.start(view)
        self._planner.start(view, self._drafters.proposers())

    def _stop(self, view: RequestView) -> None:
        self._planner.stop(view)
        self._drafters.stop(view)

    # --- what the last forward brought ------------------------------------------------------------------

    def _learn(self, rows: Sequence[Row], began: float, *, prompt: bool) -> None:
        """The forward before this call is over, which began when the last call returned. `prompt`: it also
        read a part of a prompt that goes on.
        """
        last = self._requests.call - 1
        outcomes: list[tuple[Known, Outcome]] = []
        measured = not prompt
        for row in rows:
            known, draft = row.request, row.request.draft
            known.draft = None
            came = tuple(known.view.tokens[row.kept :])
            changed = Outcome(row.kept, came)
            self._drafters.observe(known.view, changed)
            decoded, told = bool(row.call) and row.call == last, len(came) == len(row.sampled)
            measured = measured and decoded and told
            if decoded and told and draft is None:
                outcomes.append((known, changed))
            elif decoded:
                accepted = _accepted(draft, came)
                own = came if told else came[: accepted + 1]
                outcomes.append((known, Outcome(row.kept, own, draft, accepted)))
        if outcomes:
            self._round(outcomes, 1e3 * (began - self._pending.left), measured=measured)

    def _round(self, outcomes: Sequence[tuple[Known, Outcome]], ms: float, *, measured: bool) -> None:
        """A round of these requests is over. Where its time says nothing it counts as one that read a prompt,
        too.
        """
        pending, rows = self._pending, len(outcomes)
        for _, outcome in outcomes:
            self._stats.round(outcome.draft, outcome.accepted, len(outcome.tokens))
            rows += len(outcome.draft) if outcome.draft else 0
        done = Round(
            load=Load(len(outcomes), 0 if measured else 1, max(outcome.kept for _, outcome in outcomes)),
            rows=rows,
            draft_ms=pending.draft_ms,
            forward_ms=ms,
            sample_ms=0.0,
            outcomes=tuple([(known.id, outcome) for known, outcome in outcomes]),
            plan_ms=pending.plan_ms,
            late_ms=pending.late_ms,
        )
        self._planner.observe([done])
        if measured:
            self._stats.spent(done, 1.0)
            self._plain_rounds.compare(done, [self._stats.speedup] * len(outcomes))

    # --- what the next forward verifies -----------------------------------------------------------------

    def _choose(self, requests: Sequence[Known], prompts: int) -> Mapping[str, float]:
        """Choose a draft for each request, beside `prompts` tokens of prompts that are not read to their
        end. Returns the milliseconds that each drafter took.
        """
        setting = self._setting
        room_for_prompts = min(prompts, max(0, setting.forward - len(requests)))
        load = Load(len(requests), room_for_prompts, max((it.length for it in requests), default=0))
        able = [(it, room) for it in requests if (room := self._room(it, load)) > 0]
        if not able:
            self._reason = Reason.NO_ROOM if requests else self._reason
            return {}
        views = [known.view for known, _ in able]
        limits = {
            name: [limit and limit.within(room) for limit, (_, room) in zip(row, able, strict=True)]
            for name, row in self._planner.limits(views, load).items()
        }
        candidates, draft_ms = self._drafters.draft([known for known, _ in able], limits)
        choices = self._planner.choose(views, candidates, load)
        for (known, _), choice in zip(able, choices, strict=True):
            known.draft = choice.draft
        self._reason = _reason(choices)
        return draft_ms

    def _room(self, request: Known, load: Load) -> int:
        """The most draft tokens for a request. Prompts that are being read keep half of the forward."""
        setting = self._setting
        reserved = min(load.prefill_rows, setting.forward // 2)
        spare = max(0, setting.forward - reserved - load.decoding) // load.decoding
        return min(setting.longest, setting.context - request.length - 1, spare)

    def _report(self) -> None:
        """A line for vLLM's log, if anything was decoded since the last one."""
        self._reported = self._clock()
        if self._stats.rounds == self._reported_rounds:
            return
        self._reported_rounds = self._stats.rounds
        logger.info("Foredraft: %s", as_line(self.statistics()))


def _accepted(draft: Draft | None, came: Sequence[int]) -> int:
    """How many tokens of the draft are the ones that came; the last one is the model's own."""
    accepted = 0
    for drafted, token in zip(draft.tokens if draft else (), came[:-1], strict=False):
        if drafted != token:
            break
        accepted += 1
    return accepted


def _reason(choices: Sequence[Choice]) -> str | None:
    """Why nothing is drafted, if nothing is."""
    if any(choice.draft for choice in choices):
        return None
    return next((choice.reason for choice in choices if choice.reason), Reason.NOTHING_FOUND)


def as_line(stats: SpeculationStats) -> str:
    """The statistics for a log, by the names that they have everywhere."""
    shown = ("configured", "rounds", "acceptance_rate", "acceptance_length", "estimated_speedup", "reason")
    parts = [f"{name} {value}" for name in shown if (value := getattr(stats, name)) is not None]
    for name, its in stats.drafters.items():
        parts.append(f"{name}: " + ", ".join(f"{what} {number}" for what, number in asdict(its).items()))
    return "; ".join(parts + list(stats.notes))
