"""How positions are scaled (RoPE), so that a model takes texts longer than those it was trained with.

A file says how its model was trained; `config.Rope` is what the user wants instead. Linear scaling (Chen et
al. 2023, arXiv 2306.15595) divides all positions by a factor; YaRN (Peng et al. 2023, arXiv 2309.00071) only
the slow rotations, those that a training text did not complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from foredraft.config import MOST_SCALE, Rope
from foredraft.errors import ConfigError, ContextLengthError, ModelFormatError

_TITLES = {"none": "none", "linear": "linear", "yarn": "YaRN", "longrope": "LongRoPE", "llama3": "Llama 3's"}
_CHANGEABLE = ("none", "linear", "yarn")
_MOST_TOKENS = 2**31 - 1  # a C int in llama.cpp

YARN_GOOD = 4
"""How many times longer than trained YaRN makes a context without much loss."""


@dataclass(frozen=True, slots=True)
class Positions:
    """The scaling of a model's positions.

    `kind`: "none", "linear", "yarn", or another that a file names and that cannot be changed; "" for a model
    without rotary positions. `factor`: what positions are divided by. `original`: the length of the texts
    before scaling, in tokens; `trained`: the context length that the file states; 0 where a file says
    nothing. `base`: the frequency base that the user wants, 0 for the file's. `asked`: whether the user wants
    another scaling than the file's.
    """

    kind: str = "none"
    factor: float = 1.0
    original: int = 0
    trained: int = 0
    base: float = 0.0
    asked: bool = False

    @property
    def reach(self) -> int:
        """The longest context that these positions are good for; 0 if that is not known."""
        if self.kind == "yarn":
            scaled = int(self.original * self.factor)
            return scaled if self.asked else max(self.trained, scaled)
        if self.kind == "linear" and self.asked:
            return int(self.original * self.factor)
        return (self.original or self.trained) if self.asked else self.trained

    @property
    def scalable(self) -> bool:
        """Whether they can be scaled as the user wants."""
        return self.kind in _CHANGEABLE

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know who wants them so."""
        if not self.asked or self.kind != "yarn" or self.factor <= YARN_GOOD:
            return ()
        far = f"{self.factor:.3g} times, and answers may be poor."
        return (
            f"YaRN is good for about {YARN_GOOD} times the length a model was trained for; here it is {far}",
        )

    def __str__(self) -> str:
        """In words; "" without scaling."""
        if not self.asked and self.kind in ("", "none"):
            return ""
        text = _TITLES.get(self.kind, self.kind)
        if self.factor != 1.0:
            text += f" × {self.factor:g}"
        if self.original and self.kind != "none":
            text += f" from {self.original:,} tokens"
        if self.base:
            text += f", frequency base {self.base:g}"
        return f"{text} (asked for)" if self.asked else f"{text} (the file's)"


def positions_of(kind: str, factor: float, original: float, trained: int) -> Positions:
    """What a file says: its words for no scaling are many, and some say the length after it only.

    Raises ModelFormatError for a factor or a length that no model can have.
    """
    if not 1 / MOST_SCALE <= factor <= MOST_SCALE:
        raise _absurd("factor", factor)
    if not 0 <= original <= _MOST_TOKENS:
        raise _absurd("original length", original)
    if kind in ("", "default", "none") or (kind == "linear" and factor == 1.0):
        return Positions("none", original=trained, trained=trained)
    if kind == "linear" and original in (0, trained):
        original = max(int(trained / factor), 1)
    return Positions(kind, factor, int(original) or trained, trained)


def positions_of_parameters(rope: Mapping[str, Any], trained: int) -> Positions:
    """The same of transformers' `rope_parameters`, or `rope_scaling` of older configurations."""
    kind = rope.get("rope_type") or rope.get("type") or ""
    factor = _number("factor", rope.get("factor") or 1.0)
    original = _number("original length", rope.get("original_max_position_embeddings") or 0)
    return positions_of(str(kind), factor, original, trained)


def _number(what: str, value: object) -> float:
    if isinstance(value, int | float):
        with suppress(OverflowError):
            return float(value)
    raise _absurd(what, value)


def _absurd(what: str, value: object) -> ModelFormatError:
    return ModelFormatError(
        f"The model scales its positions (RoPE), and its file says {value!r} for the {what} of that.",
        hint="The file may be damaged: download it again.",
    )


def settle(name: str, file: Positions, wanted: Rope, context_length: int) -> Positions:
    """The scaling that a model is loaded with whose file has `file`. `context_length`: as asked for, or 0.

    Raises ConfigError for a scaling that the model or the other values do not allow, ContextLengthError for a
    context that is longer than positions reach.
    """
    positions = _changed(name, file, wanted, context_length) if wanted != Rope() else file
    if context_length > positions.reach > 0 and not positions.base:
        raise _too_long(name, positions, context_length)
    return positions


def _changed(name: str, file: Positions, wanted: Rope, context_length: int) -> Positions:
    if not file.kind:
        raise ConfigError(
            f"{name} has no rotary positions, which could be scaled.", hint="Leave the options of RoPE out."
        )
    if not file.scalable:
        raise ConfigError(
            f"{name} scales its positions in a way of its own ({_TITLES.get(file.kind, file.kind)}), up to "
            f"{file.trained:,} tokens; another scaling does not fit it.",
            hint="Leave the options of RoPE out.",
        )
    kind = _kind(file, wanted)
    original = wanted.original_context or file.original or file.trained
    changed = replace(file, kind=kind, base=wanted.freq_base, original=original, asked=True)
    if kind == "none":
        return replace(changed, factor=1.0)
    if not original:
        raise ConfigError(
            f"{name} does not say which length it was trained for.",
            hint="Say it: --yarn-orig-ctx N (yarn_orig_ctx).",
            setting="yarn_orig_ctx",
        )
    factor = wanted.scale or max(context_length / original, file.factor)
    if factor <= 1.0 and not wanted.scale and not context_length:
        raise ConfigError(
            f"rope_scaling={kind!r}: it is not said how far.",
            hint="Name the context length (--ctx N, context_length), from which the factor follows, or the "
            "factor (--rope-scale N, rope_scale).",
            setting="rope_scaling",
        )
    return replace(changed, factor=factor)


def _kind(file: Positions, wanted: Rope) -> str:
    """The kind of scaling. Raises ConfigError for values that contradict each other."""
    kind = file.kind if wanted.scaling == "auto" else wanted.scaling
    if kind == "none" and wanted.scale:
        stated = "the file has none" if wanted.scaling == "auto" else "rope_scaling='none' has none"
        raise ConfigError(
            f"rope_scale={wanted.scale:g} is the factor of a scaling, and {stated}.",
            hint="Say which: --rope-scaling yarn or linear (rope_scaling).",
            setting="rope_scale",
        )
    if kind != "yarn" and wanted.original_context:
        raise ConfigError(
            f"yarn_orig_ctx={wanted.original_context} is about YaRN, and the scaling is {kind!r}.",
            hint="Add --rope-scaling yarn (rope_scaling).",
            setting="yarn_orig_ctx",
        )
    return kind


def _too_long(name: str, positions: Positions, context_length: int) -> ContextLengthError:
    reach = positions.reach
    if positions.asked and positions.kind != "none":
        return ContextLengthError(
            f"{name}: {positions} reaches to {reach} tokens of context, not {context_length}.",
            hint=f"Use a context of at most {reach}, or leave --rope-scale (rope_scale) out: the factor then "
            "follows from the context.",
        )
    more = (
        ", or scale its positions with YaRN: --rope-scaling yarn (rope_scaling)" if positions.scalable else ""
    )
    return ContextLengthError(
        f"{name} was trained for {reach} tokens of context, not {context_length}.",
        hint=f"Use a context of at most {reach}{more}.",
    )
