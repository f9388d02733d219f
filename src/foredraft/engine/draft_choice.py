"""Which of the models and heads on this computer could draft for a model, judged by their files alone.

A draft model pays if it costs little and is often right (Leviathan et al. 2023, arXiv 2211.17192, section
3.3); how often cannot be told from files. So the order is a choice and not a measurement, which `foredraft
draft score` makes: the same tokenizer before another, then the nearest to a tenth of the model's parameters.
One with more than half of them costs about what its drafts save. Of mixtures of experts all parameters count,
though only some are read for a token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from foredraft.config import OFF, Speculation
from foredraft.engine.heads import HEADS
from foredraft.engine.model_facts import ModelFacts, facts_of
from foredraft.errors import ConfigError, ForedraftError, first_line
from foredraft.library import StoredModel, size_of
from foredraft.library.fingerprint import fingerprint_of
from foredraft.library.heads import DIGITS, head_of, known_heads, resolve_head
from foredraft.library.names import models_called
from foredraft.registry import backend_for

Fit: TypeAlias = Literal["fits", "translation", "no"]

BEST_SHARE = 0.1
"""The share of the model's parameters that is looked for."""

LARGEST_SHARE = 0.5
"""With a larger share no gain is expected."""

_RANKS: dict[Fit, int] = {"fits": 0, "translation": 1, "no": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model or a head, and what is to be expected of it. `value`: what names it as a draft model; None for
    a head. `share`: its parameters ÷ those of the model. `code` names the reason, `why` is a sentence;
    `also`: codes of what else is to be said.
    """

    name: str
    value: str | None
    path: Path
    size_bytes: int
    share: float | None
    fits: Fit
    code: str
    why: str
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that another model may take beside the one that it drafts for; None is no limit. `budget`: what
    is left of the server's, `free`: of the machine's memory.
    """

    budget: int | None = None
    free: int | None = None


def draft_models(
    target: Path, stored: Sequence[StoredModel], room: Room, *, others: Iterable[Path] = ()
) -> list[Candidate]:
    """All of `stored`, and `others` that are not among them, judged as draft models of `target`, found by
    `library.resolve`; the best first. Raises what `facts_of` raises of the target.
    """
    facts, own = facts_of(target), _real(target)
    found = [_of_stored(model, facts, own, stored, room) for model in stored]
    listed = {_real(model.path) for model in stored}
    found += [_of_path(path, facts, own, room) for path in others if _real(path) not in listed]
    return sorted(found, key=_rank)


def _rank(candidate: Candidate) -> tuple[int, float, str]:
    share = candidate.share
    distance = abs(math.log(share / BEST_SHARE)) if share else math.inf
    return _RANKS[candidate.fits], distance, candidate.name.casefold()


def _real(path: Path) -> Path:
    return (path.parent if path.name == "config.json" else path).resolve()


def _of_stored(
    model: StoredModel, target: ModelFacts, own: Path, stored: Sequence[StoredModel], room: Room
) -> Candidate:
    named = {_real(one.path) for one in models_called(model.name, stored, whole=True)}
    value = model.name if len(named) == 1 else str(model.path)
    judged = _of_path(model.path, target, own, room, complete=model.complete)
    return replace(judged, name=model.name, value=value, size_bytes=model.size_bytes)


def _of_path(path: Path, target: ModelFacts, own: Path, room: Room, *, complete: bool = True) -> Candidate:
    draft, problem = None, ""
    try:
        draft = facts_of(path) if complete else None
    except (ForedraftError, OSError) as error:
        problem = error.message if isinstance(error, ForedraftError) else first_line(error)
    share = draft.parameters / target.parameters if draft and target.parameters else None
    remarks: list[Remark]
    if _real(path) == own:
        remarks = [("no", "itself", "It is the model itself.")]
    elif not complete:
        remarks = [("no", "incomplete", "Some of its files are missing.")]
    elif draft is None:
        remarks = [("no", "unreadable", f"Its files cannot be used: {problem}")]
    else:
        remarks = judge(target, draft, room)
    fits, code, why = remarks[0]
    size = draft.size_bytes if draft else 0
    return Candidate(
        name=str(path),
        value=str(path),
        path=path,
        size_bytes=size,
        share=share,
        fits=fits,
        code=code,
        why=why,
        also=tuple(code for _, code, _ in remarks[1:]),
    )


Remark: TypeAlias = tuple[Fit, str, str]
"""(whether it fits as far as this goes, the reason's code, a sentence)."""


def judge(target: ModelFacts, draft: ModelFacts, room: Room) -> list[Remark]:
    """All that is to be said of a model as the draft of another; the first one decides."""
    share = draft.parameters / target.parameters if target.parameters else 0.0
    if not draft.weights:
        return [("no", "unreadable", "It has a vocabulary and no weights.")]
    found: list[Remark] = []
    if draft.recurrent:
        found.append(("no", "recurrent", "Tokens cannot be taken back from its cache, which drafting needs."))
    words = _vocabulary(target, draft, share)
    if words[0] == "no":
        found.append(words)
    if share > LARGEST_SHARE:
        found.append(("no", "size", _too_large(share)))
    for left, of in ((room.budget, "left of the server's budget"), (room.free, "free on this machine")):
        if left is not None and draft.size_bytes > left:
            size = f"{draft.size_bytes / 1e9:.1f} GB"
            found.append(("no", "memory", f"It takes {size}, and {max(0, left) / 1e9:.1f} GB are {of}."))
            break
    return found if words in found else [*found, words]


def _too_large(share: float) -> str:
    """Why a draft with `share` of the model's parameters does not pay."""
    if share < 0.95:
        has = f"{100 * share:.0f} % of the model's parameters"
    elif share < 1.05:
        has = "as many parameters as the model"
    else:
        has = f"{share:,.0f} times" if share >= 10 else f"{share:.1f} times"
        return f"It has {has} the model's parameters: a draft would cost more time than it saves."
    return f"It has {has}: a draft would cost as much time as it saves."


def _vocabulary(target: ModelFacts, draft: ModelFacts, share: float) -> Remark:
    same = bool(draft.vocab_hash) and draft.vocab_hash == target.vocab_hash
    part = f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1f} %"
    if same:
        return "fits", "same_vocabulary", f"It has the model's tokenizer and {part} of its parameters."
    if not (draft.vocab_hash and target.vocab_hash):
        return "no", "vocabulary", "One of the two has no vocabulary that can be compared."
    for facts, whose in ((draft, "Its"), (target, "The model's")):
        if not facts.gives_text_back:
            why = f"{whose} tokenizer is another one and does not give back its text"
            return "no", "vocabulary", f"{why}, so drafts cannot be translated."
    why = f"It has another tokenizer and {part} of the model's parameters: drafts are translated"
    return "translation", "translated", f"{why}, which costs some acceptance."


def heads(target: Path, folder: Path) -> list[Candidate]:
    """The heads in the models folder and those that come with Foredraft, that of the model `target` first.
    Raises what the backend of the target raises.
    """
    hash_of = backend_for(target).weights_hash
    belonging = head_of(target, folder, hash_of)
    digits = {fingerprint_of(target)[:DIGITS], hash_of(target)[:DIGITS]} - {""}
    found = [belonging] if belonging is not None else []
    found += [head for head in known_heads(folder) if head != belonging]
    return [_head(head, belonging, digits) for head in dict.fromkeys(found)]


def _head(head: Path, belonging: Path | None, digits: Iterable[str]) -> Candidate:
    fits: Fit = "fits" if head == belonging else "no"
    why = "It was made for this model, and drafts without being set."
    if fits == "no":
        mine = any(head.name.startswith(each) for each in digits)
        why = "Another head of this model comes first." if mine else "It was made for another model."
    try:
        size = size_of(head)
    except (ForedraftError, OSError):
        size, fits, why = 0, "no", "Its files cannot be read."
    return Candidate(
        name=head.name, value=None, path=head, size_bytes=size, share=None, fits=fits, code="head", why=why
    )


def head_in_use(speculation: Speculation, belonging: Path | None, folder: Path) -> Path | None:
    """The head that drafts under these settings: the one that they name, or the one that belongs to the
    model.
    """
    stage = next((stage for stage in speculation.stages if stage.name == HEADS), None)
    named = stage.options.get("model", "") if stage is not None else ""
    if named == OFF or (stage is None and not speculation.adaptive):
        return None
    try:
        return resolve_head(named, folder) if named else belonging
    except (ForedraftError, ConfigError):
        return None
