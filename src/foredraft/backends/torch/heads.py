"""Loading a head for a model: EAGLE-3 from a folder, or the model's own layer for multi-token prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from foredraft.backends.torch.chained_head import ChainedHead
from foredraft.backends.torch.eagle3 import NUMBERS, Eagle3, check_eagle3, target_tokens
from foredraft.backends.torch.features import NEXT, Trunk, layer_name
from foredraft.backends.torch.fp8 import without_scales
from foredraft.backends.torch.head import Layer, Shape, TorchHead
from foredraft.backends.torch.head_cells import HeadCells
from foredraft.backends.torch.head_files import (
    AGAIN,
    SCALES,
    Eagle3File,
    MtpFile,
    Tensors,
    missing,
    read_eagle3,
    read_mtp,
)
from foredraft.errors import CapacityError, ModelFormatError, UnsupportedModelError, first_line
from foredraft.library.fingerprint import fingerprint
from foredraft.library.repository import weight_files
from foredraft.types import ModelInfo


def load_head(
    path: Path | None, trunk: Trunk, info: ModelInfo, watched: tuple[str, ...], *, sequences: int
) -> TorchHead:
    """See `protocols.Model.load_head`. `info` is the target's, `watched` the hidden states that it keeps."""
    with _without_memory(path.name if path else info.name):
        if path is None:
            return _load_mtp(trunk, info, watched, sequences)
        return _load_eagle3(path, trunk, info, watched, sequences)


def _load_eagle3(
    path: Path, trunk: Trunk, info: ModelInfo, watched: tuple[str, ...], sequences: int
) -> TorchHead:
    text = trunk.config.get_text_config()
    file = read_eagle3(path, layers=text.num_hidden_layers)
    needs = tuple(layer_name(layer) for layer in file.layers)
    if error := missing(needs, watched, info.name):
        raise error
    sizes = check_eagle3(file, trunk)
    tensors = read_tensors(file, file.stored, trunk, keep=(NUMBERS,))
    offsets = tensors.pop(NUMBERS, None)
    tokens = None if offsets is None else target_tokens(offsets, info.vocab_size, file.name)
    shape = _shape(trunk, info, needs, tokens=tokens)
    cells = HeadCells(sequences, dtype=shape.dtype, device=shape.device, held=file.window != 1)
    network = Eagle3(file, sizes, tensors, trunk, cells)
    about = _about(info, file.folder, file.name, "eagle3", file.tensors)
    return TorchHead(Layer(network, cells), about, needs=needs, sequences=sequences, shape=shape)


def _load_mtp(trunk: Trunk, info: ModelInfo, watched: tuple[str, ...], sequences: int) -> TorchHead:
    from foredraft.backends.torch.mtp import Mtp

    folder = Path(info.path)
    files = read_mtp(folder) if folder.is_dir() else ()
    if not files:
        raise UnsupportedModelError(
            f"{info.name} has no layer for multi-token prediction that is known here.",
            hint="Name a head, or draft without one.",
        )
    needs = (NEXT,)
    if error := missing(needs, watched, info.name):
        raise error
    shape = _shape(trunk, info, needs)
    layers = []
    with ExitStack() as made:
        for file in files:
            cells = HeadCells(sequences, dtype=shape.dtype, device=shape.device)
            network = Mtp(file, trunk, cells, partial(read_tensors, file, trunk=trunk), info.name)
            layers.append(Layer(network, cells))
            made.callback(layers[-1].close)
        made.pop_all()
    tensors = {tensor.name: tensor for file in files for tensor in file.tensors.values()}
    about = _about(info, folder, info.name, "mtp", tensors)
    if len(layers) > 1:
        return ChainedHead(layers, about, needs=needs, sequences=sequences, shape=shape)
    return TorchHead(layers[0], about, needs=needs, sequences=sequences, shape=shape)


def _shape(trunk: Trunk, info: ModelInfo, needs: tuple[str, ...], *, tokens: Any = None) -> Shape:
    return Shape(
        features=len(needs) * int(trunk.config.get_text_config().hidden_size),
        vocab_size=info.vocab_size,
        context_length=info.context_length,
        dtype=trunk.embedding.dtype,
        device=trunk.embedding.device,
        tokens=tokens,
    )


def _about(info: ModelInfo, folder: Path, name: str, kind: str, tensors: Tensors) -> ModelInfo:
    """What is known of a head; it speaks its target's tokens."""
    size = sum(tensor.size_bytes for tensor in tensors.values())
    numbers = sum(torch.Size(tensor.shape).numel() for tensor in tensors.values())
    return replace(
        info,
        name=name,
        path=str(folder),
        architecture=kind,
        file_hash=fingerprint(list(weight_files(folder))),
        parameters=numbers,
        size_bytes=size,
    )


def read_tensors(
    of: Eagle3File | MtpFile, stored: Mapping[str, str], trunk: Trunk, *, keep: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The tensors by our names for them, on the model's device and in its format, but for those to `keep` as
    they are. Raises ModelFormatError.
    """
    folder, raw = of.folder, torch.float8_e4m3fn
    ours = {theirs: name for name, theirs in stored.items()}
    found: dict[str, Any] = {}
    try:
        for path in weight_files(folder):
            with safe_open(path, framework="pt") as file:
                for theirs in ours.keys() & set(file.keys()):
                    name, tensor = ours[theirs], file.get_tensor(theirs)
                    as_it_is = name in keep or tensor.dtype == raw or name.endswith(SCALES)
                    found[name] = tensor if as_it_is else tensor.to(trunk.embedding)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise ModelFormatError(f"{folder.name} is damaged ({first_line(error)}).", hint=AGAIN) from None
    whole = without_scales(found, of.block, folder.name)
    return {name: tensor if name in keep else tensor.to(trunk.embedding) for name, tensor in whole.items()}


@contextmanager
def _without_memory(name: str) -> Iterator[None]:
    """Translate the error for too little memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise CapacityError(
            f"There is not enough memory for the head {name} ({first_line(error)}).",
            hint="Use a smaller context (--ctx), or no head.",
        ) from None
