"""The parts of a target that its head starts from: embeddings, output rows, the last normalisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from foredraft.errors import UnsupportedModelError
from foredraft.registry import missing_dependency


class TargetParts(NamedTuple):
    """`embeddings` and `output` have shape (vocabulary, width), `output_norm` (width,)."""

    embeddings: npt.NDArray[np.float16]
    output: npt.NDArray[np.float16]
    output_norm: npt.NDArray[np.float32]


def gguf_package() -> Any:
    """The package that reads and writes tensors of GGUF files. Raises MissingDependencyError."""
    try:
        import gguf
    except ImportError:
        raise missing_dependency("gguf", "Making a head") from None
    return gguf


def target_parts(files: list[Path]) -> TargetParts:
    """Read them from the GGUF file of a model, or from all parts of one. Raises UnsupportedModelError,
    MissingDependencyError.
    """
    package = gguf_package()
    tensors = {tensor.name: tensor for file in files for tensor in package.GGUFReader(file).tensors}

    def read(name: str) -> npt.NDArray[np.float32]:
        tensor = tensors[name]
        values: npt.NDArray[np.float32] = package.dequantize(tensor.data, tensor.tensor_type)
        return values

    missing = [name for name in ("token_embd.weight", "output_norm.weight") if name not in tensors]
    if missing:
        raise UnsupportedModelError(
            f"{files[0].name} has no tensor {missing[0]}, from which a head would start.",
            hint="A head can be made for models of the Llama and Qwen 3 families, and those like them.",
        )
    embeddings = read("token_embd.weight").astype(np.float16)
    output = read("output.weight").astype(np.float16) if "output.weight" in tensors else embeddings
    return TargetParts(embeddings, output, np.array(read("output_norm.weight"), np.float32).ravel())
