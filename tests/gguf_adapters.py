"""LoRA adapters as GGUF files, made on the spot for a model that is there: random matrices for its layers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import gguf
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TARGETS = r"blk\.\d+\.(attn_(q|k|v|output)|ffn_(gate|up|down))\.weight"
"""The tensors that an adapter usually changes, as a regular expression."""


def lora(
    path: Path,
    base: Path,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    seed: int = 0,
    strength: float = 1.0,
    targets: str = TARGETS,
    half: bool = False,
    architecture: str = "",
    edit: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:
    """Write an adapter for the model `base` that changes what its tensors named by `targets` compute by about
    `strength` of their own size, and return its path. `half`: in F16. `architecture`: another than the
    model's; `edit` changes what the file will hold.
    """
    reader, numbers = gguf.GGUFReader(base), np.random.default_rng(seed)
    own = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(path, architecture or own)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    writer.add_name(path.stem)
    kind = np.float16 if half else np.float32
    for tensor in reader.tensors:
        if not re.fullmatch(targets, tensor.name):
            continue
        inputs, outputs, *more = (int(size) for size in tensor.shape)
        a = numbers.standard_normal((*reversed(more), rank, inputs)) / np.sqrt(inputs)
        b = (
            numbers.standard_normal((*reversed(more), outputs, rank))
            * strength
            / np.sqrt(rank)
            * (rank / alpha)
        )
        writer.add_tensor(f"{tensor.name}.lora_a", a.astype(kind))
        writer.add_tensor(f"{tensor.name}.lora_b", b.astype(kind))
    if edit is not None:
        edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
