"""Weights in FP8 as DeepSeek-V3 and Qwen's FP8 releases store them: e4m3 numbers, and beside each matrix a
scale for every block of it (DeepSeek-V3, arXiv 2412.19437 §3.3.2).

A head's are multiplied by their scales when they are read, as transformers does with its model's. That
divides a matrix evenly among its scales, also one whose last blocks are smaller, and is wrong then: such a
model is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from foredraft.backends.torch.head_files import FP8, SCALES, Block, block_of, read_mtp
from foredraft.errors import ModelFormatError, UnsupportedModelError
from foredraft.library.safetensors_file import read_safetensors


def check_blocks(folder: Path) -> None:
    """Raises UnsupportedModelError for a model with a matrix whose blocks are not all of one size. Those of
    its layers for multi-token prediction are not transformers' to read.
    """
    summary = read_safetensors(folder)
    tensors = {tensor.name: tensor for tensor in summary.tensors}
    block = block_of(summary.config, folder.name)
    heads = {name for file in read_mtp(folder) for name in file.stored.values()}
    for name, tensor in tensors.items():
        scales = tensors.get(name + SCALES)
        if tensor.type != FP8 or scales is None or name in heads:
            continue
        sizes = zip(tensor.shape[-2:], scales.shape[-2:], block, strict=False)
        if any(count > 1 and length != count * size for length, count, size in sizes):
            raise UnsupportedModelError(
                f"transformers cannot read {name} of {folder.name}: its shape {tensor.shape} is no multiple "
                f"of the blocks of {block[0]} × {block[1]} FP8 numbers that share a scale.",
                hint="Use the model in BF16.",
            )


def without_scales(tensors: dict[str, Any], block: Block, name: str) -> dict[str, Any]:
    """The tensors with those in FP8 as they are meant, in single precision; `block`: rows and columns that
    share a scale. Raises ModelFormatError if the scales do not fit.
    """
    scales = {key: tensor for key, tensor in tensors.items() if key.endswith(SCALES)}
    made = {}
    for key, tensor in tensors.items():
        if key in scales:
            continue
        scale = scales.get(key + SCALES)
        made[key] = tensor if scale is None else _scaled(tensor, scale.float(), block, f"{key} of {name}")
    return made


def _scaled(weight: Any, scales: Any, block: Block, name: str) -> Any:
    if scales.numel() == 1:
        return weight.float() * scales.flatten()[0]
    wanted = tuple(-(-length // size) for length, size in zip(weight.shape, block, strict=False))
    if weight.ndim != 2 or tuple(scales.shape) != wanted:
        raise ModelFormatError(
            f"The scales of {name} have the shape {tuple(scales.shape)}, but blocks of {block[0]} × "
            f"{block[1]} of its {tuple(weight.shape)} numbers need {wanted}.",
            hint="The repository may be incomplete or damaged: download it again.",
        )
    rows, columns = weight.shape
    spread = scales.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    return weight.to(torch.float32) * spread
