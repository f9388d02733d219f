"""What small GGUF files are made of: a writer that has the usual keys, and random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import gguf
import numpy as np

from gguf_tokenizer import CHAT_TEMPLATE, add_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    Tensor = tuple[str, npt.NDArray[np.float32]]

WeightType = Literal["f32", "f16", "q8_0", "q4_0"]

IN_F32 = ("ssm_conv1d", "shortconv.conv", "ssm_a", "ssm_d", "ssm_norm", "_norm")
"""llama.cpp convolves and scans in f32, and gates are too narrow to quantise."""


def new_writer(
    path: Path,
    architecture: str,
    *,
    name: str,
    vocab: int,
    layers: int,
    embd: int,
    ctx_train: int,
    weight_type: WeightType | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
    split_tensors: int = 0,
) -> gguf.GGUFWriter:
    """A writer with the keys that every model has, and the tokenizer. Without a `weight_type` nothing says
    what the weights are in. `split_tensors` > 0: a split model with that many tensors in a file.
    """
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split_tensors)
    writer.add_name(name)
    if weight_type is not None:
        writer.add_file_type(_file_type(weight_type))
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(ctx_train)
    writer.add_embedding_length(embd)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * embd)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    add_tokenizer(writer, vocab, chat_template)
    return writer


class Weights:
    """Random weights, (outputs, inputs), at scales that keep activations near 1; `mixing` is how much layers
    add to the last token's embedding.
    """

    def __init__(self, embd: int, seed: int, mixing: float) -> None:
        self.embd = embd
        self.mixing = mixing
        self._rng = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
        return self._rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(scale / columns**0.5)

    def within(self, low: float, high: float, *shape: int) -> npt.NDArray[np.float32]:
        return self._rng.uniform(low, high, shape).astype(np.float32)

    def ones(self, *shape: int) -> npt.NDArray[np.float32]:
        return np.ones(shape or (self.embd,), dtype=np.float32)

    def feed_forward(self, prefix: str) -> Iterator[Tensor]:
        wide = 2 * self.embd
        yield prefix + "ffn_gate.weight", self.matrix(wide, self.embd)
        yield prefix + "ffn_up.weight", self.matrix(wide, self.embd)
        yield prefix + "ffn_down.weight", self.matrix(self.embd, wide, 2.0 * self.mixing)

    def model(self, vocab: int, layers: int, layer: Callable[[int], Iterator[Tensor]]) -> Iterator[Tensor]:
        """The tensors of a model of which `layer` yields those of each layer.

        The output matrix is scaled so that logits have a standard deviation of about 3: peaked enough that
        greedy text is stable under rounding, flat enough that sampling has something to choose from.
        """
        yield "token_embd.weight", self.matrix(vocab, self.embd, self.embd**0.5)
        for number in range(layers):
            yield from layer(number)
        yield "output_norm.weight", self.ones()
        yield "output.weight", self.matrix(vocab, self.embd, 3.0)


def next_layer(prefix: str, weights: Weights) -> Iterator[Tensor]:
    """What a layer for multi-token prediction has besides a usual layer's tensors: it adds `mixing` times a
    mixture of all to the token's embedding.
    """
    embd = weights.embd
    both = np.hstack([np.eye(embd, dtype=np.float32), np.zeros((embd, embd), np.float32)])
    yield prefix + "nextn.eh_proj.weight", both + weights.mixing * weights.matrix(embd, 2 * embd)
    yield prefix + "nextn.enorm.weight", weights.ones()
    yield prefix + "nextn.hnorm.weight", weights.ones()


def write(
    writer: gguf.GGUFWriter,
    tensors: Iterable[Tensor] = (),
    weight_type: WeightType = "f32",
    chosen: Sequence[int] | None = None,
) -> None:
    """Add the tensors, in `weight_type` where they are matrices, then the tokens that a head proposes, and
    write the file.
    """
    for name, values in tensors:
        if weight_type == "f32" or values.ndim == 1 or any(part in name for part in IN_F32):
            writer.add_tensor(name, values)
        else:
            kind = gguf.GGMLQuantizationType[weight_type.upper()]
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    if chosen is not None:
        writer.add_tensor("d2t", np.asarray(chosen, np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _file_type(weight_type: WeightType) -> int:
    names = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0", "q4_0": "MOSTLY_Q4_0"}
    return int(gguf.LlamaFileType[names[weight_type]])
