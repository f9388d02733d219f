"""From a speculation setting to drafters and a planner, with a note for every drafter that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from foredraft.config import ModelOptions, Speculation, Stage
from foredraft.engine.drafting import Drafters
from foredraft.engine.setup import Setup
from foredraft.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    MissingDependencyError,
    ModelError,
    SpeculationStringError,
)
from foredraft.library import models_dir, resolve
from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.planner.fixed import FixedPlanner
from foredraft.planner.replay import Replay
from foredraft.protocols import Drafter, DrafterContext, Model
from foredraft.registry import backend_for, create_drafter
from foredraft.sampling.constraint import compile_constraint
from foredraft.sampling.coupled import CoupledSampler
from foredraft.sampling.guide import Guide
from foredraft.types import Capabilities, Constraint, Rollback

AUTO_STAGES = (
    Stage("suffix", {"min-p": "0.02"}),
    Stage("recycle", {"min-p": "0.05", "max": "16"}),
    Stage("prediction"),
    Stage("grammar"),
)
"""What `auto` drafts with when nothing else is named: sources that need no second model. Those that need a
prediction or a constraint propose nothing for a request without one."""

_UNUSABLE = (ModelError, CapacityError, MissingDependencyError, BackendError, ConfigError)


def assemble(
    model: Model,
    speculation: Speculation,
    *,
    store: Path | None,
    options: ModelOptions,
    clock: Callable[[], float] = perf_counter,
) -> Setup:
    """Build the drafters. Raises SpeculationStringError for what the user must correct; anything else that
    keeps a drafter from being used becomes a note, and the engine goes on without it.
    """
    drafters: list[Drafter] = []
    notes: list[str] = []
    reason = _why_impossible(model, speculation)
    context = _context(model, store, options, notes.append)
    for stage in [] if reason else _stages(speculation):
        try:
            drafters.append(create_drafter(stage, context))
        except SpeculationStringError:
            for drafter in drafters:
                drafter.close()
            raise
        except _UNUSABLE as error:
            notes.append(f"drafter {stage} cannot be used: {error.message.splitlines()[0]}")
    if drafters:
        notes += _rollback_notes(model.capabilities)
    elif reason is None:
        reason = "none of the drafters asked for can be used"
    able = model.capabilities
    learner = None
    if speculation.adaptive:
        learner = AdaptivePlanner(Replay.of(able), trees=able.trees, ragged=able.ragged)
    return Setup(
        Drafters(drafters, model.info.vocab_size, trees=model.capabilities.trees, clock=clock),
        learner or FixedPlanner(),
        str(speculation),
        reason,
        tuple(notes),
        learner,
    )


def _why_impossible(model: Model, speculation: Speculation) -> str | None:
    if speculation.off:
        return "speculation is turned off"
    able = model.capabilities
    if able.rollback is Rollback.BOUNDED and able.rollback_bound < able.max_rows - 1:
        return "this model keeps a recurrent state, which cannot be rolled back to the accepted tokens"
    return None


def _rollback_notes(able: Capabilities) -> list[str]:
    """How rejected tokens are taken back, where that costs something."""
    if able.rollback is not Rollback.SNAPSHOT:
        return []
    again = "accepted tokens of a draft are computed again"
    if able.rollback_bound:
        again += f" if more than {able.rollback_bound} are rejected"
    return [f"this model keeps a recurrent state: {again}"]


def _stages(speculation: Speculation) -> list[Stage]:
    named = {stage.name for stage in speculation.stages}
    extra = [stage for stage in AUTO_STAGES if stage.name not in named] if speculation.adaptive else []
    return [*speculation.stages, *extra]


def _context(
    model: Model, store: Path | None, options: ModelOptions, notice: Callable[[str], None]
) -> DrafterContext:
    def load(path: str, *, sequences: int, context_length: int) -> Model:
        folder = models_dir(options.cache_dir) if options.cache_dir else Path()
        file = resolve(path, folder, options.other_programs)
        return backend_for(file).load(file, _draft_options(options, sequences, context_length))

    def follow(constraint: Constraint) -> Guide:
        return compile_constraint(constraint, model.tokenizer)

    return DrafterContext(
        target=model.info,
        capabilities=model.capabilities,
        tokenizer=model.tokenizer,
        sampler=CoupledSampler(model.info.vocab_size, model.tokenizer.end_tokens, follow),
        load_model=load,
        store=store,
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
        probe=False,  # a draft's arithmetic may differ: only its guesses would
    )
