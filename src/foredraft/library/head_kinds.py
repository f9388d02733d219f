"""The kinds of trained heads, as headers of GGUF files and configurations of safetensors name them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foredraft.errors import UnsupportedModelError

EAGLE3 = "eagle3"
DFLASH = "dflash"
DSPARK = "dspark"
ASSISTANT = "gemma4-assistant"

ARCHITECTURES = frozenset({EAGLE3, DFLASH, ASSISTANT})
"""Of GGUF files; a DSpark head is a `dflash` file."""

_IN_CONFIGURATIONS = (EAGLE3, DFLASH, DSPARK)


def kind_of(config: Mapping[str, Any]) -> str:
    """The kind of head that a configuration describes; "" for a model. SpecForge names the kind in the class,
    speculators beside it.
    """
    classes = config.get("architectures")
    names = [*classes] if isinstance(classes, list) else []
    names += [config.get("speculators_model_type", ""), config.get("model_type", "")]
    said = " ".join(str(name).lower() for name in names)
    return next((kind for kind in _IN_CONFIGURATIONS if kind in said), "")


def no_model(path: Path) -> UnsupportedModelError:
    """The error for a head where a model is wanted."""
    return UnsupportedModelError(
        f"{path.name} is a head, which drafts for a model, and not a model itself.",
        hint="Name the model, and its head: foredraft run -m MODEL --speculate "
        f"'auto;heads:model={path}'\nWhether it helps there: foredraft draft score MODEL {path}",
    )
