"""The display name of a model: the name in its file, unless it is an artefact of conversion."""

from __future__ import annotations

import re

_GENERIC = re.compile(
    r"(ggml-|gguf-|hf-|pytorch-|merged-|fused-|final-|best-|base-|quantized-|converted-)*"
    r"(model|hf|safetensors|snapshots?|checkpoint|outputs?|out|results?|merged?|final|best|base|converted"
    r"|quantized|downloads?|te?mp|test|unknown|none|null|untitled|unnamed|name|llm)"
)
_NUMBERED = re.compile(r"(checkpoint|step|epoch|iter|run)(-?\d+)+")
_TRAINING = re.compile(r"(ep|epochs?|mix|steps?|ckpt|checkpoint|iters?|seed|lr|bs)\d+[kmb]?")
_TEMPORARY = re.compile(r"tmp[-.]?[a-z0-9-]{6,12}")
_DIGEST = re.compile(r"(sha256[-:])?(?=[a-f0-9]*\d)(?=[a-f0-9]*[a-f])[a-f0-9]{12,}")
_PATH = re.compile(r"^[~.]|^[/\\]|^[A-Za-z]:[/\\]|[/\\].*[/\\]")
_ENDINGS = re.compile(r"\.(gguf|safetensors|bin|pt|pth)$")


def display_name(stated: str, stem: str) -> str:
    """`stated`, a GGUF's `general.name`, if it is meaningful; else `stem`, the name of the file or folder.

    Converters store the name of the folder in which they found the model: "model", a path, a temporary
    folder's random letters, the hash of a revision, the settings of a training run ("Mix1 Ep2").
    """
    return stem if is_noise(stated) else stated.strip()


def is_noise(stated: str) -> bool:
    """Whether a stated name is meaningless."""
    word = _ENDINGS.sub("", re.sub(r"[\s_]+", "-", stated.strip().casefold()))
    if not re.search(r"[^\W\d_]", word) or not stated.isprintable() or _PATH.search(stated.strip()):
        return True
    whole = any(pattern.fullmatch(word) for pattern in (_GENERIC, _NUMBERED, _TEMPORARY, _DIGEST))
    return whole or any(_TRAINING.fullmatch(part) for part in word.split("-"))
