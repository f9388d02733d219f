"""The head in PyTorch: an EAGLE-3 layer (Li et al. 2025, arXiv 2503.01840) whose rows see only themselves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from foredraft.draft.make.sizes import Sizes

EPSILON = 1e-5


def _normed(values: Tensor, weight: Tensor) -> Tensor:
    """Root mean square normalisation over the last axis, in single precision."""
    return functional.rms_norm(values.float(), weight.shape, weight, EPSILON)


class HeadNetwork(nn.Module):  # type: ignore[misc]
    """Shapes: features (rows, 3 × width), embeddings and hidden states (rows, width), logits (rows,
    vocabulary). Parameters have the names of the GGUF format's tensors, with "_" for ".".

    `scale` (3 × width) is the usual size of each feature after normalisation. `output` (vocabulary, width)
    are the target's output rows of the tokens that the head proposes. They are trained, too: on the
    default model that is as good after 100 s of a processor (0.289 right at depth 1, frozen 0.290), with a
    sixth fewer batches in that time.
    """

    def __init__(self, sizes: Sizes, *, scale: Tensor, output: Tensor, output_norm: Tensor) -> None:
        super().__init__()
        width = sizes.width
        self.sizes = sizes
        self.enc_output_norm = nn.Parameter(1.0 / scale.float(), requires_grad=False)
        self.fc = nn.Linear(3 * width, width, bias=False)
        self.attn_norm = nn.Parameter(torch.ones(width))
        self.attn_norm_2 = nn.Parameter(torch.ones(width))
        self.attn_v = nn.Linear(2 * width, sizes.rank, bias=False)
        self.attn_output = nn.Linear(sizes.rank, width, bias=False)
        self.ffn_norm = nn.Parameter(torch.ones(width))
        self.ffn_gate = nn.Linear(width, sizes.ffn, bias=False)
        self.ffn_up = nn.Linear(width, sizes.ffn, bias=False)
        self.ffn_down = nn.Linear(sizes.ffn, width, bias=False)
        self.output_norm = nn.Parameter(output_norm.float().clone())
        self.output = nn.Parameter(output.float().clone())
        with torch.no_grad():
            self.fc.weight[:, 2 * width :] += torch.eye(width)  # begins as the last of the three states
            self.ffn_down.weight *= 0.3

    def fuse(self, features: Tensor) -> Tensor:
        """The state that a draft begins with."""
        fused: Tensor = self.fc(_normed(features, self.enc_output_norm))
        return fused

    def step(self, embeddings: Tensor, state: Tensor) -> Tensor:
        """The next state: that of the row of a token, from the state before it."""
        both = torch.cat([_normed(embeddings, self.attn_norm), _normed(state, self.attn_norm_2)], -1)
        mixed = state.float() + self.attn_output(self.attn_v(both))
        inner = _normed(mixed, self.ffn_norm)
        out: Tensor = mixed + self.ffn_down(functional.silu(self.ffn_gate(inner)) * self.ffn_up(inner))
        return out

    def logits(self, state: Tensor) -> Tensor:
        """Of the tokens that the head proposes."""
        return functional.linear(_normed(state, self.output_norm), self.output)

    def trained(self) -> list[nn.Parameter]:
        """The parameters that training changes."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def matrices(self) -> dict[str, npt.NDArray[np.float32]]:
        """Arrays by the names of the GGUF format, without queries and keys: copies, which `read` leaves as
        they are.
        """
        return {
            _stored(name): tensor.detach().float().cpu().numpy().copy()
            for name, tensor in self.state_dict().items()
        }

    def read(self, arrays: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Take over arrays with the names and shapes of `matrices`."""
        self.load_state_dict({name: torch.from_numpy(arrays[_stored(name)]) for name in self.state_dict()})


def _stored(name: str) -> str:
    """The name of a parameter's tensor in a file."""
    name = name.removesuffix(".weight")
    outer = {
        "fc": "fc",
        "output": "output",
        "output_norm": "output_norm",
        "enc_output_norm": "enc.output_norm",
    }
    return outer.get(name, f"blk.0.{name}") + ".weight"
