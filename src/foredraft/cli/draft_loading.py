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
from foredraft.config import AUTO, OFF, ModelOptions, Speculation, Stage, parse_speculation
from foredraft.draft.reading import Guesses, HeadGuesses, ModelGuesses
from foredraft.draft.sources import TOGETHER
from foredraft.engine.engine import Engine
from foredraft.engine.heads import HEADS, OWN
from foredraft.errors import ModelError, ModelNotFoundError, UnsupportedModelError
from foredraft.library.heads import resolve_head
from foredraft.protocols import Model
from foredraft.registry import backend_for
from foredraft.types import ModelInfo, Rollback

OWN_LAYERS = ("own", "")
"""How a model's own layers for multi-token prediction are named."""


@dataclass(frozen=True, slots=True)
class Pair:
    """`answering` speculates as it likes and has the costs of this machine; `target` shares its weights.
    `guesses` are those of what is scored, which reads the features `needs`; at most `room` tokens fit.
    """

    answering: Engine
    target: Model
    guesses: Guesses
    needs: tuple[str, ...]
    name: str
    description: str
    room: int


def load_pair(model: str, draft: str, loading: dict[str, Any], errors: Console, stack: ExitStack) -> Pair:
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
) -> Pair:
    answering, target = _load_target(path, parse_speculation(OFF), loading, errors, stack)
    options = loading | {"probe": False, "remember": False, "context_length": 0}
    [drafting] = load_engines(draft_path, [parse_speculation(OFF)], options, errors)
    draft = stack.enter_context(drafting).model
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
    described = model_text(draft.info)
    return Pair(answering, target, ModelGuesses(draft), (), draft.info.name, described, room)


def _with_head(
    path: Path, head: Path | None, loading: dict[str, Any], errors: Console, stack: ExitStack
) -> Pair:
    options = ModelOptions(llama_library=loading.get("llama_library"))
    if not backend_for(path).features_for(path, head, options):
        raise UnsupportedModelError(
            f"{path.name} has no layers for multi-token prediction.",
            hint="Name a head's file, or a draft model.",
        )
    named = {} if head is None else {"model": str(head)}
    watching = Speculation(stages=(Stage(HEADS, named),), adaptive=False)
    answering, target = _load_target(path, watching, loading, errors, stack)
    loaded = target.load_head(head, sequences=1)
    stack.callback(loaded.close)
    name = OWN if head is None else head.stem
    described = f"{name}, a head that reads {', '.join(loaded.needs)}"
    return Pair(
        answering, target, HeadGuesses(loaded), loaded.needs, name, described, target.info.context_length
    )


def _load_target(
    path: Path, reading: Speculation, loading: dict[str, Any], errors: Console, stack: ExitStack
) -> tuple[Engine, Model]:
    """(an engine that answers, the model to be read with). `reading`: what the model is loaded for. Raises
    UnsupportedModelError if it had to be loaded without what a head reads.
    """
    options = loading | {"sequences": TOGETHER, "remember": False}
    answering, other = load_engines(path, [parse_speculation(AUTO), reading], options, errors)
    stack.enter_context(answering)
    stack.enter_context(other)
    if not reading.off and not other.model.capabilities.features:
        raise UnsupportedModelError(
            "; ".join(other.notes), hint="Without that no head of this model can be scored."
        )
    other.set_speculation(OFF)
    return answering, other.model


def model_text(info: ModelInfo) -> str:
    """A model as it is shown."""
    return f"{info.name}, {info.quantization or 'unknown quantization'}"
