"""What speculation runs on: drafters and a planner made from a speculation string, measured once for the
loaded model, with what was learnt kept between runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from foredraft.config import ModelOptions, Speculation, Stage
from foredraft.engine.drafting import Drafters
from foredraft.engine.heads import HEADS, belongs, load_head, switched_off
from foredraft.engine.prefix.cache import PrefixCache
from foredraft.engine.profile_store import Profile, ProfileStore, key_of
from foredraft.engine.request import Request
from foredraft.engine.warmup import BASELINE_SIZES, REQUIRED, SIZES, measure_costs
from foredraft.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    MissingDependencyError,
    ModelError,
    SpeculationStringError,
)
from foredraft.library import models_dir, resolve
from foredraft.library.mmproj import NONE as NO_MMPROJ
from foredraft.planner import AutoPlanner, StaticPlanner
from foredraft.protocols import Drafter, DrafterContext, Head, Model, Planner, scope_with
from foredraft.registry import backend_for, create_drafter
from foredraft.sampling.coupled import CoupledSampler
from foredraft.sampling.guide import Guide
from foredraft.sampling.thought import ThoughtGuide, answer_guide
from foredraft.types import Capabilities, ModelInfo, Reason, Rollback, Round, SamplingParams, Undrafted

AUTO_STAGES = (
    Stage("suffix", {"min-p": "0.02"}),
    Stage("recycle", {"min-p": "0.05", "max": "16"}),
    Stage("prediction"),
    Stage("grammar"),
)
"""What `auto` drafts with when nothing else is named: sources that need no second model. Those that need a
prediction or a constraint propose nothing for a request without one. The model's head is another, if it has
one."""

REASON_CODES = {str(reason): reason.name.lower() for reason in (*Reason, *Undrafted)}
"""A stable code for each reason why nothing is drafted, for programs and translations."""

TRUSTED_ROUNDS = 500
"""Measured rounds from which a stored cost curve needs no second measurement when the model is loaded. One
that was measured on purpose (`foredraft profile`) never does."""

_UNUSABLE = (ModelError, CapacityError, MissingDependencyError, BackendError, ConfigError)


@dataclass(frozen=True, slots=True)
class Setup:
    """`configured` is the speculation string; `reason` why speculation cannot run at all, None if it can;
    `notes` what had to be left out; `head` the head that drafts: its file, or words. `networks`: the stages
    whose drafters have loaded a network of their own.
    """

    drafters: Drafters
    planner: Planner
    configured: str
    reason: str | None = None
    notes: tuple[str, ...] = ()
    head: str | None = None
    networks: tuple[Stage, ...] = ()

    def why_not(self, request: Request, latest: str | None) -> str | None:
        """Why nothing was drafted for a request; None when something was. `latest`: why nothing was drafted
        in the last round.
        """
        if request.stats.drafted:
            return None
        if self.reason is None and not request.max_draft:
            return Reason.SWITCHED_OFF
        return self.why_nothing(latest) or Undrafted.NOTHING_PAID

    def why_nothing(self, latest: str | None) -> str | None:
        """Why nothing is drafted at the moment, whatever the request; None while something is."""
        if self.reason is not None:
            return self.reason
        return latest if self.drafters else Undrafted.DRAFTERS_FAILED

    def all_notes(self) -> tuple[str, ...]:
        """What a user should know: drafters that were left out or failed, and why."""
        return (*self.notes, *self.drafters.notes)


@dataclass(frozen=True, slots=True)
class Assembler:
    """Makes setups for one model. `unwatched`: why the model was loaded without what its head reads, if it
    should have been.
    """

    model: Model
    store: Path | None
    options: ModelOptions
    unwatched: str
    clock: Callable[[], float] = perf_counter

    def assemble(self, speculation: Speculation, old: Setup) -> Setup:
        """Build the drafters. The networks of the setup that is replaced, `old`, are closed before others are
        loaded, so that memory holds one of each; `put_back` loads them again.

        Raises SpeculationStringError for what the user must correct; anything else that keeps a drafter from
        being used becomes a note, and the engine goes on without it.
        """
        model = self.model
        reason = _why_impossible(model, speculation)
        stages = [] if reason else _stages(speculation, model, self.options)
        made = self._made(stages, old.drafters, [stage.name for stage in old.networks])
        notes = made.notes
        if made.drafters:
            notes += _rollback_notes(model.capabilities)
        elif reason is None:
            reason = Undrafted.NO_DRAFTER
        if made.networks and model.adapters:
            names = ", ".join(stage.name for stage in made.networks)
            notes.append(f"{names}: drafts without the model's adapters, and may guess worse with them")
        return Setup(
            Drafters(
                made.drafters,
                model.info.vocab_size,
                trees=model.capabilities.trees,
                parameters=model.info.parameters,
                placeholder=-1 if model.vision is None else model.vision.placeholder,
                clock=self.clock,
            ),
            AutoPlanner(model.capabilities) if speculation.adaptive else StaticPlanner(),
            str(speculation),
            reason,
            tuple(notes),
            made.head,
            tuple(made.networks),
        )

    def put_back(self, old: Setup) -> Setup:
        """A setup that is not replaced after all: with the networks that were closed, as far as they can be
        loaded; a note says what cannot.
        """
        stages = [stage for stage in old.networks if stage.name in old.drafters.closed]
        if not stages:
            return old
        made = self._made(stages)
        for drafter in made.drafters:
            old.drafters.put_back(drafter)
        old.drafters.closed.clear()
        lost = [stage for stage in stages if stage not in made.networks]
        networks = tuple(stage for stage in old.networks if stage not in lost)
        head = made.head if any(stage.name == HEADS for stage in stages) else old.head
        return replace(old, notes=(*old.notes, *made.notes), head=head, networks=networks)

    def _made(
        self, stages: Sequence[Stage], old: Drafters | None = None, networks: Sequence[str] = ()
    ) -> _Made:
        """The stages' drafters. Of the `old` ones those named in `networks` are closed before one is loaded.
        Raises SpeculationStringError, and then closes what was made.
        """
        made = _Made()
        loads: list[None] = []

        def before_load() -> None:
            loads.append(None)
            if old is not None:
                old.make_room(networks)

        context = _context(self, before_load, notice=made.notes.append, on_head=made.heads.append)
        try:
            for stage in stages:
                loads.clear()
                try:
                    made.drafters.append(create_drafter(stage, context))
                except SpeculationStringError:
                    raise
                except _UNUSABLE as error:
                    made.notes.append(f"drafter {stage} cannot be used: {error.message.splitlines()[0]}")
                else:
                    made.networks.extend([stage] if loads else [])
        except BaseException:
            for drafter in made.drafters:
                drafter.close()
            raise
        return made


@dataclass(frozen=True, slots=True)
class _Made:
    """Drafters, those of their stages that have loaded a network, and what is to be said of them."""

    drafters: list[Drafter] = field(default_factory=list)
    networks: list[Stage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)

    @property
    def head(self) -> str | None:
        return self.heads[0] if self.heads else None


def _why_impossible(model: Model, speculation: Speculation) -> Undrafted | None:
    if speculation.off:
        return Undrafted.TURNED_OFF
    able = model.capabilities
    if able.rollback is Rollback.BOUNDED and able.rollback_bound < able.max_rows - 1:
        return Undrafted.RECURRENT_STATE
    return None


def _rollback_notes(able: Capabilities) -> list[str]:
    """How rejected tokens are taken back, where that costs something."""
    if able.rollback is not Rollback.SNAPSHOT:
        return []
    again = "accepted tokens of a draft are computed again"
    if able.rollback_bound:
        again += f" if more than {able.rollback_bound} are rejected"
    return [f"this model keeps a recurrent state: {again}"]


def _stages(speculation: Speculation, model: Model, options: ModelOptions) -> list[Stage]:
    named = {stage.name for stage in speculation.stages}
    extra = [stage for stage in AUTO_STAGES if stage.name not in named] if speculation.adaptive else []
    if speculation.adaptive and HEADS not in named and belongs(model, options):
        extra.append(Stage(HEADS))
    return [stage for stage in (*speculation.stages, *extra) if not switched_off(stage)]


def _context(
    assembler: Assembler,
    before_load: Callable[[], None],
    *,
    notice: Callable[[str], None],
    on_head: Callable[[str], None],
) -> DrafterContext:
    """What drafters are made with. `before_load` is called before a network is loaded, `on_head` with what is
    shown of a head that was.
    """
    model, options = assembler.model, assembler.options

    def load(path: str, *, sequences: int, context_length: int) -> Model:
        folder = models_dir(options.cache_dir) if options.cache_dir else Path()
        file = resolve(path, folder, options.other_programs)
        before_load()
        return backend_for(file).load(file, _draft_options(options, sequences, context_length))

    def load_own(path: str, *, sequences: int) -> Head:
        before_load()
        head, shown = load_head(model, path, options, assembler.unwatched, sequences=sequences, notice=notice)
        on_head(shown)
        return head

    def follow(params: SamplingParams) -> Guide | ThoughtGuide | None:
        return answer_guide(params, model.tokenizer)

    return DrafterContext(
        target=model.info,
        capabilities=model.capabilities,
        tokenizer=model.tokenizer,
        sampler=CoupledSampler(model.info.vocab_size, model.tokenizer.end_tokens, follow),
        load_model=load,
        load_head=load_own,
        store=assembler.store,
        grammar=follow,
        notice=notice,
    )


def _draft_options(options: ModelOptions, sequences: int, context_length: int) -> ModelOptions:
    return ModelOptions(
        context_at_most=context_length,
        sequences=sequences,
        threads=options.threads,
        gpu_layers=options.gpu_layers,
        memory=options.memory,
        kv_type=options.kv_type,
        flash_attention=options.flash_attention,
        progress=options.progress,
        mmproj=NO_MMPROJ,  # rows of images are placeholders to it
        probe=False,  # a draft's arithmetic may differ: only its guesses would
    )


class WarmUp:
    """What a planner of one loaded model begins with: the stored profile, and the costs of a few forwards,
    measured once. `store` None: nothing is kept between runs. `clock` gives seconds; `notice` takes a line
    where measuring takes long.
    """

    def __init__(self, model: Model, cache: PrefixCache, clock: Callable[[], float]) -> None:
        self.store: PlannerStore | None = None
        self.notice: Callable[[str], None] | None = None
        self.adapter = ""
        """What is measured with."""
        self._model = model
        self._cache = cache
        self._clock = clock
        self._costs: Sequence[Round] | None = None

    def begin(self, planner: Planner) -> None:
        """Prepare a planner. Forwards are measured in a free sequence, so no request may be running."""
        if not isinstance(planner, AutoPlanner):
            return
        planner.usual_adapter = self.adapter
        known = self.store is not None and self.store.load(planner)
        if self._costs is None:
            self._costs = self._measured(thorough=not known)
        planner.observe(self._costs)

    def end(self, planner: Planner) -> None:
        """Keep what a planner has learnt, if anything is kept."""
        if self.store is not None and isinstance(planner, AutoPlanner):
            self.store.save(planner)

    def _measured(self, *, thorough: bool) -> Sequence[Round]:
        scope = scope_with("", self._model.adapters.get(self.adapter, ""))
        place = self._cache.acquire([0], scope, adapter=self.adapter)
        assert place is not None, "only called while no request is running"
        sizes = SIZES if thorough else BASELINE_SIZES
        costs = measure_costs(self._model, place[0], sizes=sizes, clock=self._clock, notice=self.notice)
        self._cache.drop(place[0])
        return costs


class PlannerStore:
    """The stored profile of one model, with the `adapter` of that key. It is read when speculation is set up
    and written when it is set up anew or the engine is closed, never while a request is running.
    Without `remember` only costs are kept, which are the machine's: acceptance comes from texts.
    """

    def __init__(self, store: ProfileStore, info: ModelInfo, adapter: str = "", *, remember: bool) -> None:
        self._store = store
        self._key = key_of(info, adapter)
        self._name = info.name
        self._remember = remember
        self._known: Profile | None = None

    def load(self, planner: AutoPlanner) -> bool:
        """Give a planner what is stored. Returns whether that is enough to begin with."""
        known = self._known = self._store.load(self._key)
        if known is None:
            return False
        planner.cost.load_state({"milliseconds": known.curve, "size_change": known.resize or 0.0})
        if self._remember:
            planner.load_state(known.learnt)
        measured = REQUIRED.intersection(known.curve.get(min(known.curve), ()))
        return bool(measured) and (known.thorough or known.rounds >= TRUSTED_ROUNDS)

    def save(self, planner: AutoPlanner) -> None:
        """Store what a planner has learnt; costs as they were, where none were measured with all threads. A
        failure is logged.
        """
        learnt, costs, known = planner.state(), planner.cost.state(), self._known
        if costs:
            curve = {
                int(depth): {int(rows): ms for rows, ms in sizes.items()}
                for depth, sizes in costs["milliseconds"].items()
            }
            now = datetime.now(UTC)
            known = known or Profile(key=self._key, name=self._name, curve=curve, measured_at=now)
            known = replace(known, curve=curve, resize=round(costs["size_change"], 4), measured_at=now)
        if known is None or not planner.cost.rounds:
            return
        self._known = replace(
            known,
            rounds=known.rounds + planner.cost.rounds,
            learnt=learnt if self._remember else known.learnt,
        )
        self._store.save(self._known)
