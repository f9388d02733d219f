"""The image-text models of transformers that are supported, and how they differ.

Of every kind `get_image_features` computes the rows of an image, alone and always alike. They differ in what
the chat template writes for an image, in what stands around its rows, in whether its rows see all of each
other, and in their positions. Kinds whose text sees pictures by attention of its own (Llama 3.2) are not
supported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of models. `marker`: the attribute of the configuration with the id of the token that the chat
    template writes for an image. `around`: the texts before and after the rows that take its place; `alone`:
    those where the template knows no images, and writes none. Names in braces are tokens of the
    configuration. `whole`:
    rows of an image see all of it, in both directions. `grid`: the output of the image processor that says
    how many rows an image has and where they stand, of models with rotary positions in three dimensions.
    `tiles`: a large image is seen in tiles, each a run of rows, and then as a whole. `text`: the name of the
    part that reads.
    """

    marker: str = "image_token_id"
    around: tuple[str, str] = ("", "")
    alone: tuple[str, str] | None = None
    whole: bool = False
    grid: str = ""
    tiles: bool = False
    text: str = "language_model"


_QWEN: Final = Kind(grid="image_grid_thw", alone=("{vision_start}", "{vision_end}"))
_IDEFICS: Final = Kind(tiles=True, text="text_model")
KINDS: Final[Mapping[str, Kind]] = {
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
    "gemma3": Kind(marker="boi_token_id", around=("\n\n{boi}", "{eoi}\n\n"), whole=True),
    "idefics3": _IDEFICS,
    "llava": Kind(),
    "smolvlm": _IDEFICS,
}
"""By the type of the whole model's configuration."""


def kind_of(config: Any) -> Kind | None:
    """The kind of a model, by its configuration; None if it reads text only, or its kind is not supported."""
    if not hasattr(config, "vision_config"):
        return None
    return KINDS.get(getattr(config, "model_type", ""))


def is_seeing(config: Any) -> bool:
    """Whether a model is of a supported kind."""
    return kind_of(config) is not None


def eyes(source: Any) -> Collection[Any]:
    """The modules of transformers' model `source` that only images go through."""
    kind = kind_of(source.config)
    if kind is None:
        return frozenset()
    parts = [part for name, part in source.model.named_children() if name != kind.text]
    return frozenset(module for part in parts for module in part.modules())
