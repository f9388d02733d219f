"""The network of a model's own layer for multi-token prediction (DeepSeek-V3, arXiv 2412.19437 §2.2).

The token's embedding and the hidden state before it, each normalised, are joined by a product and go through
one more layer of the model's kind, which is transformers' own class with our attention over the head's cells.
A model may have several such layers, one for each token ahead (`chained_head`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import torch
from transformers import AttentionInterface

from foredraft.backends.torch.attention import Style
from foredraft.backends.torch.features import BEFORE_THE_NORM, Trunk
from foredraft.backends.torch.head_cells import HeadCells
from foredraft.backends.torch.head_files import MtpFile, check_tensors, check_types
from foredraft.errors import ModelFormatError, UnsupportedModelError

BLOCK = "block."
SLIDING = frozenset({"mimo_v2_flash"})
"""Families in which this layer has a sliding window; in the others its rows see all earlier ones."""

_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
_numbers = count()

Read = Callable[[Mapping[str, str]], dict[str, Any]]
"""Reads tensors: names of ours to those in the files."""


class Mtp:
    """See `head.Network`."""

    def __init__(self, file: MtpFile, trunk: Trunk, cells: HeadCells, read: Read, name: str) -> None:
        self._trunk, self._cells, self._name = trunk, cells, name
        self._base = _decoder_of(trunk, name)
        self._kind = trunk.config.model_type
        self._interface = f"foredraft_{next(_numbers)}_mtp"
        config = _layer_config(
            trunk.config, self._kind, sparse=any(".experts." in key for key in file.tensors)
        )
        config._attn_implementation = self._interface
        self.window = int(config.sliding_window) if self._kind in SLIDING else 0
        size = int(config.hidden_size)
        check_types(file.tensors, name)
        check_tensors(
            file.tensors,
            {"eh_proj.weight": (size, 2 * size)}
            | {f"{norm}.weight": (size,) for norm in ("enorm", "hnorm", "norm")},
            name,
        )
        tensors = read(
            {ours: theirs for ours, theirs in file.stored.items() if not ours.startswith("shared.")}
        )
        self._join = trunk.linear(tensors["eh_proj.weight"])
        self._norms = [self._norm(tensors[f"{norm}.weight"]) for norm in ("enorm", "hnorm", "norm")]
        block = {key.removeprefix(BLOCK): tensor for key, tensor in tensors.items() if key.startswith(BLOCK)}
        self._block = _filled(type(self._base.layers[-1]), config, block, name)
        AttentionInterface.register(self._interface, self._attend)

    def _norm(self, weight: Any) -> Any:
        """A norm as the model's last one."""
        made = copy.copy(self._base.norm)
        made._parameters = {**made._parameters, "weight": torch.nn.Parameter(weight, requires_grad=False)}
        made._forward_pre_hooks = type(made._forward_pre_hooks)()  # those that watch the model's
        return made

    def fuse(self, features: Any) -> Any:
        """See `Network`. The model's hidden state is the first one of the layer as it is."""
        return features

    def __call__(self, tokens: Any, hidden: Any, positions: Any, wanted: Any) -> tuple[Any, Any]:
        """See `Network`."""
        before_token, before_hidden, last = self._norms
        embedded = torch.nn.functional.embedding(tokens, self._trunk.embedding)
        rows = self._join(torch.cat([before_token(embedded), before_hidden(hidden)], -1))[None]
        kind = ("sliding_attention",) if self._kind in SLIDING else ()
        made = self._block(
            rows,
            position_embeddings=self._base.rotary_emb(rows, positions[None], *kind),
            attention_mask=None,
            position_ids=positions[None],
            cache=None,
        )
        rows = (made[0] if isinstance(made, tuple) else made)[0]
        normed = last(rows)
        state = rows if self._kind in BEFORE_THE_NORM else normed
        return state, self._trunk.output(normed[wanted])

    def _attend(
        self,
        module: Any,  # noqa: ARG002 - there is one
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,  # noqa: ARG002 - the cells know what a row sees
        *,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Any = None,
        **rest: Any,  # noqa: ARG002 - windows, which the cells know, and options for training
    ) -> tuple[Any, None]:
        """Attention function for transformers: (1, heads, rows, size) in, (1, rows, heads, size) out."""
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return self._cells.attend(q.contiguous(), k, v, Style(scale, None, softcap, s_aux))[None], None

    def close(self) -> None:
        """Free the weights."""
        AttentionInterface._global_mapping.pop(self._interface, None)
        del self._block, self._norms, self._join, self._trunk, self._base


def _decoder_of(trunk: Trunk, name: str) -> Any:
    base = None if trunk.source is None else trunk.source.get_decoder()
    if base is None or not all(hasattr(base, part) for part in ("layers", "norm", "rotary_emb")):
        raise UnsupportedModelError(
            f"{name} is computed in a way that its layer for multi-token prediction does not know."
        )
    return base


def _layer_config(config: Any, kind: str, *, sparse: bool) -> Any:
    """A configuration with which the layer class makes one layer of this kind; `sparse`: with experts."""
    made = copy.deepcopy(config)
    made.num_hidden_layers = 1
    if getattr(made, "layer_types", None) is not None:
        made.layer_types = ["sliding_attention" if kind in SLIDING else "full_attention"]
    if getattr(made, "mlp_layer_types", None) is not None:
        made.mlp_layer_types = ["sparse" if sparse else "dense"]
    if hasattr(made, "mlp_only_layers"):
        made.mlp_only_layers = [] if sparse else [0]
        made.decoder_sparse_step = 1
    if hasattr(made, "first_k_dense_replace"):
        made.first_k_dense_replace = 0 if sparse else 1
    return made


def _filled(kind: type[Any], config: Any, tensors: dict[str, Any], name: str) -> Any:
    """A layer with these weights. Raises ModelFormatError if they do not fit it."""
    with torch.device("meta"):  # allocates no memory
        block = kind(config, 0)
    wanted = block.state_dict()
    tensors = _with_joined_experts(tensors, name)
    lacking = sorted(wanted.keys() - tensors.keys())
    if lacking:
        raise ModelFormatError(
            f"The layer for multi-token prediction of {name} lacks {len(lacking)} tensors, for example "
            f"{lacking[0]}.",
            hint="The repository may be incomplete: download it again.",
        )
    for key, expected in wanted.items():
        if tensors[key].shape != expected.shape:
            raise ModelFormatError(
                f"In {name} the tensor {key} of the layer for multi-token prediction has the shape "
                f"{tuple(tensors[key].shape)}, but {tuple(expected.shape)} is needed.",
                hint="Files of two models may be mixed up: download the repository again.",
            )
    block.load_state_dict({key: tensors[key] for key in wanted}, assign=True)
    block.requires_grad_(False)  # noqa: FBT003 - torch's own signature
    return block.eval()


def _with_joined_experts(tensors: dict[str, Any], name: str) -> dict[str, Any]:
    """The weights of experts, which are stored one by one, stacked as transformers has them."""
    experts: dict[str, dict[int, Any]] = {"gate": {}, "up": {}, "down": {}}
    others: dict[str, Any] = {}
    for key, tensor in tensors.items():
        found = _EXPERT.fullmatch(key)
        if found:
            experts[found.group(2)][int(found.group(1))] = tensor
        else:
            others[key] = tensor
    if not experts["gate"]:
        return others
    numbers = range(len(experts["gate"]))
    try:
        gate, up, down = (torch.stack([experts[part][i] for i in numbers]) for part in experts)
        joined = torch.cat([gate, up], 1)
    except (KeyError, RuntimeError):
        raise ModelFormatError(
            f"The layer for multi-token prediction of {name} lacks a part of its experts.",
            hint="The repository may be incomplete: download it again.",
        ) from None
    return others | {"mlp.experts.gate_up_proj": joined, "mlp.experts.down_proj": down}
