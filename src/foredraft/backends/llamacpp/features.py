"""The hidden states of a target that its heads read: their names, which models have them, and their values.

"layer:N" is the input of layer N, counted from 0; of some models also that of a layer after the last, which
there is not. "next" is what the layers for multi-token prediction read, the state after the last of the other
layers. llama.cpp returns both for all rows, also for rows without logits. It ends the process if it is asked
for the inputs of layers of an architecture that does not record them, so the architectures that do are listed
here, as read in `src/models` of the pinned version.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from foredraft.backends.llamacpp import abi, ext
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.gguf_file import GGUFSummary
from foredraft.errors import BackendError, ConfigError, UnsupportedModelError
from foredraft.types import Features

NEXT = "next"
_LAYER = "layer:"

# fmt: off
WITH_LAYER_INPUTS = frozenset({
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "k2-horizon", "lfm2",
    "lfm2moe", "llama", "mimo2", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h",
    "nemotron_h_moe", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next",
})
# fmt: on
"""Architectures that record the inputs of their layers (`t_layer_inp`). Not qwen4exp, which has several
states for a row.
"""

WITH_LAST_OUTPUT = frozenset({"deepseek4", "mimo2", "nemotron_h", "nemotron_h_moe"})
"""Those of `WITH_LAYER_INPUTS` that also record what a layer after the last would get."""

# fmt: off
WITH_NEXT = frozenset({
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe", "glm5-next",
    "hy_v3", "mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35",
})
# fmt: on
"""Architectures with a graph of their layers for multi-token prediction (`LLM_GRAPH_TYPE_DECODER_MTP`)."""

CHAINED = frozenset({"hy_v3", "mimo2", "step35"})
"""Those of `WITH_NEXT` with several such layers, one for each token ahead. The others assert that there is
one.
"""


def layer(number: int) -> str:
    """The name of a layer's input."""
    return f"{_LAYER}{number}"


def number_of(name: str) -> int | None:
    """The layer of which a name is the input; None for `NEXT`. Raises ConfigError for any other name."""
    number = name.removeprefix(_LAYER)
    if name.startswith(_LAYER) and number.isdecimal():
        return int(number)
    if name == NEXT:
        return None
    raise ConfigError(f"There is no hidden state {name!r}.", hint=f"Valid names: {_LAYER}N and {NEXT}.")


def next_layers(summary: GGUFSummary) -> int:
    """The number of layers for multi-token prediction in a file that llama.cpp can use for drafts."""
    architecture = summary.architecture
    stated = summary.metadata.get(f"{architecture}.nextn_predict_layers", 0)
    count = stated if isinstance(stated, int) else 0
    if architecture not in WITH_NEXT or not 0 < count < summary.block_count:
        return 0
    if count > 1 and architecture not in CHAINED:
        return 0
    names = {tensor.name for tensor in summary.tensors}
    first = summary.block_count - count
    stored = all(f"blk.{first + i}.nextn.eh_proj.weight" in names for i in range(count))
    return count if stored else 0


def check(name: str, watch: Sequence[str], architecture: str, *, layers: int, following: int) -> None:
    """Raises UnsupportedModelError if a model of this architecture cannot return what is watched. It has
    `layers` layers, and `following` ones for multi-token prediction; `name` is the model's, for the message.
    """
    for wanted in watch:
        number = number_of(wanted)
        if number is None and (architecture not in WITH_NEXT or not following):
            raise UnsupportedModelError(
                f"{name} has no layers for multi-token prediction that llama.cpp can use ({architecture}).",
                hint="Use it without its own head.",
            )
        if number is not None and architecture not in WITH_LAYER_INPUTS:
            raise UnsupportedModelError(
                f"llama.cpp does not return the hidden states of {architecture} models such as {name}, "
                "which a trained head reads.",
                hint="Use it without a head: other drafters need no hidden states.",
            )
        if number is not None and number >= layers + (architecture in WITH_LAST_OUTPUT):
            raise UnsupportedModelError(
                f"{name} has {layers} layers: a head that reads {wanted} was made for another model.",
                hint="Use a head that was trained for this model.",
            )


def size_of(weights: Any, watch: Sequence[str]) -> int:
    """How many numbers each of the watched states has. Raises UnsupportedModelError if they differ."""
    sizes = {
        int(
            lib.llama_model_n_embd_out(weights)
            if number_of(name) is None
            else lib.llama_model_n_embd(weights)
        )
        for name in watch
    }
    if len(sizes) > 1:
        raise UnsupportedModelError("The hidden states for different heads of this model differ in size.")
    return max(sizes, default=0)


def record(context: Any, watch: Sequence[str]) -> None:
    """Make llama.cpp keep these states of all rows, in a context that is new and then empty; before it has a
    kept graph. `check` must have passed. Raises MissingDependencyError, BackendError.
    """
    if not watch:
        return
    for name in watch:
        number = number_of(name)
        if number is None:
            ext.functions().set_embeddings_nextn(context, True, False)  # noqa: FBT003 - C
        else:
            ext.functions().set_embeddings_layer_inp(context, number, True)  # noqa: FBT003 - C
    # Memory for a graph was planned before, and a plan is used for any graph with as many nodes: it would
    # overwrite the states. The first forward plans anew.
    token = (abi.llama_token * 1)(0)
    if lib.llama_decode(context, lib.llama_batch_get_one(token, 1)) != 0:
        raise BackendError("llama.cpp failed to compute a forward that returns hidden states.")
    lib.llama_memory_seq_rm(lib.llama_get_memory(context), 0, -1, -1)


MOST_VIEWS = 64
"""Places of the states whose views are kept: they move, together, with the number of rows that return logits,
between a round with a draft and one without. All are in one buffer, in which they keep their distances.
"""


class Watched:
    """The recorded states of a context's last forward. `capacity`: the most rows of one."""

    def __init__(self, watch: Sequence[str], size: int, capacity: int) -> None:
        self.names = tuple(watch)
        self.size = size
        self._numbers = [number_of(name) for name in watch]
        self._capacity = capacity
        self._views: dict[int, list[Features]] = {}

    def rows(self, context: Any, places: Sequence[int]) -> Features:
        """The rows at these places of the forward's batch, shape (rows, states × size): a view of one state
        whose rows are a range, else a copy.
        """
        first = self._address(context, self._numbers[0])
        views = self._views.get(first)
        if views is None:
            if len(self._views) >= MOST_VIEWS:
                self._views.clear()
            views = [self._view(self._address(context, number)) for number in self._numbers]
            self._views[first] = views
        chosen = slice(places.start, places.stop, places.step) if isinstance(places, range) else places
        if len(views) == 1:
            return views[0][chosen]
        return np.concatenate([view[chosen] for view in views], axis=1)

    def _address(self, context: Any, number: int | None) -> int:
        """Where a state is now."""
        if number is None:
            return int(ext.functions().get_embeddings_nextn(context))
        return int(ext.functions().get_embeddings_layer_inp(context, number))

    def _view(self, address: int) -> Features:
        numbers = (ctypes.c_float * (self._capacity * self.size)).from_address(address)
        return np.ctypeslib.as_array(numbers).reshape(self._capacity, self.size)
