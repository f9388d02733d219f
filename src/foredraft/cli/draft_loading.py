"""Loading a model and what is to be scored as a draft for it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from foredraft.cli.head_files import says_head
from foredraft.cli.loading import find_model, load_engines
from foredraft.cli.model_summary import summary_of
from foredraft.cli.paths import models_dir
from foredraft.config import OFF, ModelOptions, Speculation, Stage, parse_speculation
from foredraft.draft.pair import WITHOUT, Pair
from foredraft.draft.reading import HeadGuesses, ModelGuesses
from foredraft.draft.sources import TOGETHER
from foredraft.engine.engine import Engine
from foredraft.engine.heads import HEADS, OWN
from foredraft.errors import ModelError, ModelNotFoundError, UnsupportedModelError
from foredraft.library.heads import resolve_head
from foredraft.registry import backend_for
from foredraft.types import ModelInfo, Rollback

OWN_LAYERS = ("own", "")
"""How a model's own layers for multi-token prediction are named."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is shown of a pair, and how many tokens of a text fit."""

    pair: Pair
    name: str
    description: str
    room: int


def load_pair(model: str, draft: str, loading: dict[str, Any], errors: Console, stack: ExitStack) -> Loaded:
    """Load both; `stack` frees them. Raises ModelError, CapacityError, MissingDependencyError."""
    path = find_model(model)
    own = draft in OWN_LAYERS
    head = None if own else _find_head(draft, loading.get("llama_library"))
    if own or head is not None:
        return _with_head(path, head, loading, errors, stack)
    return _with_model(path, find_model(draft), loading, errors, stack)


def _find_head(named: str, llama_library: Path | None) -> Path | None:
    """The head of this name or path; None if it is a model, or nothing at all."""
    try:
        found = resolve_head(named, models_dir())
    except ModelNotFoundError:
        return None
    try:
        return found if says_head(summary_of(found, llama_library)) else None
    except ModelError:
        return None  # what is wrong with it is said when it is loaded as a model


def _with_model(
    path: Path, draft_path: Path, loading: dict[str, Any], errors: Console, stack: ExitStack
) -> Loaded:
    answering, other = _load_target(path, parse_speculation(OFF), loading, errors, stack)
    options = loading | {"probe": False, "remember": False, "context_length": 0}
    [drafting] = load_engines(draft_path, [parse_speculation(OFF)], options, errors)
    draft, target = stack.enter_context(drafting).model, other.model
    if draft.info.vocab_hash != target.info.vocab_hash:
        raise UnsupportedModelError(
            f"{draft.info.name} has another vocabulary than {target.info.name}: their distributions are of "
            "other tokens, and cannot be compared.",
            hint="It can draft all the same, by translation. How fast is that? foredraft bench -m MODEL "
            "--speculate 'auto;draft-model:model=DRAFT'",
        )
    if draft.capabilities.rollback is not Rollback.TRUNCATE:
        raise UnsupportedModelError(
            f"{draft.info.name} cannot draft: rejected tokens cannot be removed from its cache.",
            hint="Use a draft model with attention layers only.",
        )
    room = min(target.info.context_length, draft.info.context_length)
    stage = Stage("draft-model", {"model": str(draft_path)})
    pair = Pair(answering, other, ModelGuesses(draft), draft, stage)
    return Loaded(pair, draft.info.name, model_text(draft.info), room)


def _with_head(
    path: Path, head: Path | None, loading: dict[str, Any], errors: Console, stack: ExitStack
) -> Loaded:
    options = ModelOptions(llama_library=loading.get("llama_library"))
    if not backend_for(path).features_for(path, head, options):
        raise UnsupportedModelError(
            f"{path.name} has no layers for multi-token prediction.",
            hint="Name a head's file, or a draft model.",
        )
    named = {} if head is None else {"model": str(head)}
    stage = Stage(HEADS, named)
    watching = Speculation(stages=(stage,), adaptive=False)
    answering, other = _load_target(path, watching, loading, errors, stack)
    loaded = other.model.load_head(head, sequences=1)
    stack.callback(loaded.close)
    name = OWN if head is None else head.stem
    described = f"{name}, a head that reads {', '.join(loaded.needs)}"
    pair = Pair(answering, other, HeadGuesses(loaded), loaded, stage, loaded.needs)
    return Loaded(pair, name, described, other.model.info.context_length)


def _load_target(
    path: Path, reading: Speculation, loading: dict[str, Any], errors: Console, stack: ExitStack
) -> tuple[Engine, Engine]:
    """(an engine that answers, one whose model is read). `reading`: what the model is loaded for. Raises
    UnsupportedModelError if it had to be loaded without what a head reads.
    """
    options = loading | {"sequences": TOGETHER, "remember": False}
    answering, other = load_engines(path, [WITHOUT, reading], options, errors)
    stack.enter_context(answering)
    stack.enter_context(other)
    if not reading.off and not other.model.capabilities.features:
        raise UnsupportedModelError(
            "; ".join(other.setup.all_notes()), hint="Without that no head of this model can be scored."
        )
    other.set_speculation(OFF)
    return answering, other


def model_text(info: ModelInfo) -> str:
    """A model as it is shown."""
    return f"{info.name}, {info.quantization or 'unknown quantization'}"
