"""Reading the file of a head, of whatever kind."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from foredraft.backends.llamacpp.gguf_file import GGUFSummary, read_gguf
from foredraft.backends.llamacpp.heads.dflash_file import DFlashFile, read_dflash
from foredraft.backends.llamacpp.heads.eagle3_file import Eagle3File, read_eagle3
from foredraft.errors import UnsupportedModelError
from foredraft.library.head_kinds import ASSISTANT, DFLASH, EAGLE3

HeadFile: TypeAlias = DFlashFile | Eagle3File

_UNUSABLE = {ASSISTANT: "Gemma 4 assistant"}


def read_head(path: Path, target: GGUFSummary) -> HeadFile:
    """Read a head for the target. Raises what `read_gguf` does, UnsupportedModelError if it is no head, or
    one of another model or kind, and ModelFormatError if it is damaged.
    """
    if path.is_dir():
        raise UnsupportedModelError(
            f"{path.name} is a folder, and the head of a GGUF model is a GGUF file.",
            hint="A folder of safetensors is a head for models in such folders. Name a GGUF file.",
        )
    head = read_gguf(path)
    if head.architecture == EAGLE3:
        return read_eagle3(head, target)
    if head.architecture == DFLASH:
        return read_dflash(head, target)
    if head.architecture in _UNUSABLE:
        raise UnsupportedModelError(
            f"{path.name} is a {_UNUSABLE[head.architecture]} head, which Foredraft cannot use: it computes "
            "in the model's own cache.",
            hint="Use an EAGLE-3 or DFlash head of the same model, if there is one.",
        )
    raise UnsupportedModelError(
        f"{path.name} is not a trained head: its architecture is {head.architecture}.",
        hint="If it is a small model of the same kind, use it as a draft model: draft-model:model=FILE.",
    )
