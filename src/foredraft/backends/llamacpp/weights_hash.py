"""What the quantisations of a model have in common: the weights of its norms.

llama.cpp's quantiser leaves vectors in single precision, so these weights are the same, bit for bit, in every
file that was made of the same model, and training changes them. A model that was trained further with
adapters (LoRA), which leave the norms alone, counts as the same.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from foredraft.backends.llamacpp.gguf_file import GGUFSummary


def weights_hash(summary: GGUFSummary) -> str:
    """A hash of the norms' weights and of the sizes of the vocabulary and the model; "" if the file has no
    norms in single precision, or all of their numbers are equal, as in a model that was not trained.
    """
    norms = {tensor.name: tensor for tensor in summary.tensors if "norm" in tensor.name}
    facts = f"{summary.architecture}|{summary.vocab_size}|{summary.embedding_length}|{summary.block_count}"
    digest = hashlib.sha256(facts.encode())
    seen: set[bytes] = set()
    for name, tensor in sorted(norms.items()):
        if tensor.type != "f32":
            return ""
        values = np.fromfile(tensor.path, "<f4", tensor.elements, offset=tensor.offset)
        digest.update(f"|{name}".encode() + values.tobytes())
        seen |= {number.tobytes() for number in (values.min(), values.max())}
    return digest.hexdigest()[:32] if len(seen) > 1 else ""
