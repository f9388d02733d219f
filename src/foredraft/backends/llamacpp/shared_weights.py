"""A file's weights in memory, and what is loaded beside them, which several open models may compute with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foredraft.backends.llamacpp.adapters import Loaded
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.backends.llamacpp.rpc.library import Hosts
from foredraft.backends.llamacpp.vision import LlamaCppVision


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """The weights of a file, and the open models that compute with them, the last of which frees them."""

    path: Path
    pointer: Any
    lines: Sequence[str]
    types: tuple[str, str] | None
    adapters: Mapping[str, Loaded]
    in_trial: bool
    vision: LlamaCppVision | None
    hosts: Hosts
    users: set[LlamaCppModel] = field(default_factory=set)

    @property
    def beside(self) -> dict[str, int]:
        """Bytes of what is loaded beside the weights, by the names of `ModelInfo.memory`."""
        found = {}
        if self.adapters:
            found["adapters"] = sum(adapter.bytes for adapter in self.adapters.values())
        if self.vision is not None:
            found["vision"] = self.vision.weights_bytes + self.vision.compute_bytes
        return found

    @property
    def held(self) -> int:
        """Bytes of the weights and what is loaded beside them."""
        return int(lib.llama_model_size(self.pointer)) + sum(self.beside.values())

    def free_unused(self) -> None:
        """Free them if no model computes with them."""
        if not self.users:
            if self.vision is not None:
                self.vision.close()
            lib.llama_model_free(self.pointer)
