"""Recurrent layers of transformers that call no kernel by name, reimplemented with our kernels.

RecurrentGemma, MiniMax and xLSTM contain their recurrences in the layer itself, and keep the state in the
layer or in their own cache. Here the forwards of these layers are replaced: the weights and operations are
the original ones, and the state is in `States` like that of other kernels.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from foredraft.backends.torch.lanes import by_lanes
from foredraft.backends.torch.linear import Linear
from foredraft.backends.torch.scans import Scans

Layer: TypeAlias = Callable[..., Any]

SHARPNESS = -8.0
"""Constant of real-gated linear recurrent units: the effect of an open gate on the decay (c in equation 6).
"""


class Mixers:
    """Forwards for the layers of transformers' model `source`, using `scans`; they multiply with `linear`.

    `copied`: the weights of which they have copies, as (module, name).
    """

    def __init__(self, source: Any, scans: Scans, linear: Callable[..., Linear]) -> None:
        self._scans, self._linear = scans, linear
        self.copied: list[tuple[Any, str]] = []
        # If the package `xlstm` is installed, transformers uses its layers, which differ.
        self._by_class: dict[str, Callable[[Any], Layer]] = {
            "RecurrentGemmaRecurrentBlock": self._gated_unit,
            "MiniMaxLightningAttention": self._lightning_attention,
        }
        if any(type(module).__name__ == "xLSTMBackend" for module in source.modules()):
            self._by_class |= {
                "xLSTMBackend": self._matrix_memory,
                "xLSTMLayer": _with_soft_cap,
                "xLSTMForCausalLM": _in_one_piece,
            }

    def forward_for(self, module: Any) -> Layer | None:
        """The replacement for the forward of a transformers module, if there is one."""
        if not type(module).__module__.startswith("transformers.models."):
            return None
        make = self._by_class.get(type(module).__name__)
        return make(module) if make else None

    def _gated_unit(self, block: Any) -> Layer:
        """RecurrentGemma's block: a convolution and a real-gated linear recurrent unit (De et al. 2024, arXiv
        2402.19427, section 2.4), beside a gate.
        """
        unit, convolution = block.rg_lru, block.conv_1d
        open_input = self._by_head(unit, "input_gate_weight", unit.input_gate_bias)
        open_state = self._by_head(unit, "recurrent_gate_weight", unit.recurrent_gate_bias)

        def mix(rows: Any, positions: Any) -> Any:
            closing = SHARPNESS * by_lanes(torch.sigmoid, open_state(rows).float())
            closing = closing * functional.softplus(unit.recurrent_param.float())
            share = torch.sqrt(1.0 - by_lanes(torch.exp, 2.0 * closing))
            share = torch.where(positions[:, None] == 0, 1.0, share)  # no state before the first row
            added = rows * by_lanes(torch.sigmoid, open_input(rows).float()) * share
            return self._scans.gated_unit(added, by_lanes(torch.exp, closing))

        def forward(hidden: Any, position_ids: Any, *_: Any, **__: Any) -> tuple[Any, None]:
            gate = block.act_fn(block.linear_y(hidden))
            columns = block.linear_x(hidden).transpose(1, 2)
            seen = self._scans.convolve(columns, convolution.weight[:, 0], convolution.bias)
            mixed = mix(seen[0].t().contiguous(), position_ids[0])
            return block.linear_out(mixed.to(hidden.dtype)[None] * gate), None

        return forward

    def _by_head(self, module: Any, name: str, bias: Any) -> Linear:
        """The products of heads that each process their part of a row; the weight has shape (heads, inputs,
        outputs), the bias (heads, outputs).
        """
        weight = getattr(module, name).detach()
        self.copied.append((module, name))
        products = [
            self._linear(part.t().contiguous(), own)
            for part, own in zip(weight, bias.detach().contiguous(), strict=True)
        ]
        size = weight.shape[1]

        def apply(rows: Any) -> Any:
            parts = rows.split(size, dim=1)
            return torch.cat(
                [product(part.contiguous()) for product, part in zip(products, parts, strict=True)], dim=1
            )

        return apply

    def _lightning_attention(self, layer: Any) -> Layer:
        """MiniMax's attention layer without a softmax."""

        def forward(hidden_states: Any, *_: Any, **__: Any) -> tuple[Any, None]:
            mixed = layer.act_fn(layer.qkv_proj(hidden_states))[0]
            heads = mixed.view(len(mixed), layer.num_attention_heads, -1)
            q, k, v = heads.split(layer.head_dim, dim=2)
            seen = self._scans.lightning(q, k, v, layer.slope_rate)
            seen = layer.norm(seen.flatten(1).to(hidden_states.dtype))
            gate = by_lanes(torch.sigmoid, layer.output_gate(hidden_states)[0])
            return layer.out_proj((gate * seen)[None]), None

        return forward

    def _matrix_memory(self, backend: Any) -> Layer:
        """The memory of xLSTM, which gets the logarithms of its gates."""

        def forward(
            *, query: Any, key: Any, value: Any, igate: Any, fgate: Any, **_: Any
        ) -> tuple[Any, None]:
            q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
            seen = self._scans.matrix_memory(q, k, v, igate[0].t(), fgate[0].t(), backend.config.eps)
            return seen.transpose(0, 1)[None].to(query.dtype), None

        return forward


def calling(module: Any, kernels: Mapping[str, Callable[..., Any]]) -> Layer:
    """The module's own forward, with these names redefined in it. Raises TypeError if it is not a Python
    function.
    """
    forward = inspect.unwrap(type(module).forward)
    if not isinstance(forward, FunctionType):
        raise TypeError(f"{type(module).__name__}.forward is not a Python function")
    scope = {**forward.__globals__, **kernels}
    same = FunctionType(forward.__code__, scope, forward.__name__, forward.__defaults__, forward.__closure__)
    same.__kwdefaults__ = forward.__kwdefaults__
    return MethodType(same, module)


def soft_cap(values: Any, cap_value: float | None = None) -> Any:
    """Squeeze numbers into ± `cap_value`, each in the same way at any position."""
    if cap_value is None:
        return values
    flat = values.flatten(0, -2)
    return (by_lanes(torch.tanh, flat / cap_value) * cap_value).view(values.shape)


def _with_soft_cap(module: Any) -> Layer:
    return calling(module, {"soft_cap": soft_cap})


def _in_one_piece(model: Any) -> Layer:
    """The forward of xLSTM as a whole: by default a long prompt would pass through its layers in pieces."""
    model.config.max_inference_chunksize = sys.maxsize
    return _with_soft_cap(model)
