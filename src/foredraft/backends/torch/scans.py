"""The kernels of recurrent layers, row by row: a row's result does not depend on the number of rows.

transformers has two of each, one for a single row and one that processes many in chunks; they round
differently, and the latter computes 64 or 256 rows even for 3. These process row by row with products and
sums of the same shapes for any number of rows, so the same rows have the same bits in one forward or in many.
The most expensive part of a forward, the products with weights, is outside and processes all rows at once.

Rows of all sequences are concatenated, in a batch of one; so are the results. Names and arguments are those
of the functions in transformers that they replace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from transformers.activations import ACT2FN

from foredraft.backends.torch.lanes import by_lanes
from foredraft.backends.torch.states import Made, States, Versions

NOTHING = -1e38
"""The logarithm of an empty sum."""

BLOCK = 16
"""Rows whose Mamba decays are computed together: they are as large as its states."""


class Scans:
    """The kernels, with states in `states`."""

    def __init__(self, states: States) -> None:
        self._states = states

    def by_name(self) -> dict[str, Callable[..., Any]]:
        """The kernels by the names of transformers' kernels for many rows."""
        return {
            "causal_conv1d_fn": self.convolve,
            "mamba_selective_scan": self.selective_scan,
            "mamba2_chunk_scan": self.state_space_dual,
            "torch_chunk_gated_delta_rule": self.gated_delta_rule,
            "chunk_kimi_delta_attention": self.gated_delta_rule,
            "rwkv_linear_attention": self.wkv,
        }

    def convolve(
        self, hidden_states: Any, weight: Any, bias: Any = None, activation: str | None = None, **_: Any
    ) -> Any:
        """A causal convolution of each channel. Shapes (1, channels, rows), (channels, kernel)."""
        rows = hidden_states[0].t().to(weight.dtype)
        taps = weight.t().contiguous()
        past = len(taps) - 1

        def step(before: Any, first: int, end: int, keep: int) -> tuple[Any, Versions]:
            count = end - first
            seen, versions = _seen(before, rows[first:end], past, keep)
            out = seen[:count] * taps[0]
            for place in range(1, past + 1):
                out = torch.addcmul(out, seen[place : place + count], taps[place])
            return out, versions

        out = self._states.advance(step)
        if bias is not None:
            out = out + bias
        if activation is not None:
            out = ACT2FN[activation](out)
        return out.to(hidden_states.dtype).t()[None]

    def shift(self, hidden: Any) -> Any:
        """The row before each one, zeros before the first. Shape (1, rows, size)."""

        def step(before: Any, first: int, end: int, keep: int) -> tuple[Any, Versions]:
            seen, versions = _seen(before, hidden[0, first:end], 1, keep)
            return seen[:-1], versions

        return self._states.advance(step)[None]

    def selective_scan(  # noqa: PLR0917 - as transformers calls it
        self,
        hidden_states: Any,
        dt: Any,
        A: Any,  # noqa: N803 - the names of the paper, by which transformers passes them
        B: Any,  # noqa: N803
        C: Any,  # noqa: N803
        D: Any = None,  # noqa: N803
        z: Any = None,
        delta_bias: Any = None,
        **_: Any,
    ) -> Any:
        """Mamba (Gu and Dao 2023, arXiv 2312.00752, algorithm 2). `hidden_states`, `dt` and the gate `z` have
        shape (1, channels, rows), `A` (channels, state), `B` and `C` (1, state, rows).
        """
        x, dt, b, c = (tensor[0].t().float() for tensor in (hidden_states, dt, B, C))
        dt = by_lanes(functional.softplus, dt if delta_bias is None else dt + delta_bias)
        scaled = dt * x

        def step(before: Any, first: int, end: int, keep: int) -> tuple[Any, Versions]:
            state = torch.zeros_like(A) if before is None else before
            made, out = Made(state, first, end, keep), []
            for row in range(first, end):
                block = (row - first) % BLOCK
                if block == 0:
                    rows = slice(row, min(end, row + BLOCK))
                    decay = torch.exp(dt[rows, :, None] * A)
                    added = scaled[rows, :, None] * b[rows, None, :]
                state = torch.addcmul(added[block], state, decay[block])
                made.add(state, row)
                out.append(torch.mv(state, c[row]))
            return torch.stack(out), made.versions

        out = self._states.advance(step)
        if D is not None:
            out = out + x * D
        if z is not None:
            out = out * functional.silu(z[0].t().contiguous())
        return out.to(hidden_states.dtype).t()[None]

    def state_space_dual(
        self,
        hidden_states: Any,
        dt: Any,
        A: Any,  # noqa: N803
        B: Any,  # noqa: N803
        C: Any,  # noqa: N803
        *,
        D: Any = None,  # noqa: N803
        dt_bias: Any = None,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        **_: Any,
    ) -> Any:
        """Mamba-2 (Dao and Gu 2024, arXiv 2405.21060, equation 2). `hidden_states` has shape (1, rows, heads,
        size), `dt` (1, rows, heads), `A` (heads), `B` and `C` (1, rows, groups, state).
        """
        x, dt, b, c = (tensor[0].float() for tensor in (hidden_states, dt, B, C))
        heads = x.shape[1]
        b, c = (tensor.repeat_interleave(heads // tensor.shape[1], dim=1) for tensor in (b, c))
        dt = by_lanes(functional.softplus, dt if dt_bias is None else dt + dt_bias).clamp(*dt_limit)
        decay = by_lanes(torch.exp, dt * A)[:, :, None, None]
        scaled = (x * dt[:, :, None])[:, :, :, None]
        b, c = b[:, :, None, :], c[:, :, :, None]

        def step(before: Any, first: int, end: int, keep: int) -> tuple[Any, Versions]:
            state = x.new_zeros(heads, x.shape[2], b.shape[3]) if before is None else before
            made, out = Made(state, first, end, keep), []
            for row in range(first, end):
                state = torch.mul(state, decay[row], out=made.unused(state, row))
                made.add(state.addcmul_(scaled[row], b[row]), row)
                out.append(torch.bmm(state, c[row]))
            return torch.stack(out)[..., 0], made.versions

        out = self._states.advance(step)
        if D is not None:
            out = out + x * D[:, None]
        return out[None]

    def gated_delta_rule(
        self,
        query: Any,
        key: Any,
        value: Any,
        g: Any,
        beta: Any,
        *,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> tuple[Any, None]:
        """Gated delta nets (Yang et al. 2024, arXiv 2412.06464, equation 10). `query` and `key` have shape
        (1, rows, key heads, size), `value` (1, rows, heads, size), `beta` and `g`, the decay's logarithm, (1,
        rows, heads). In Kimi's delta attention (Kimi Team 2025, arXiv 2510.26692) every number of a key has a
        decay: `g` is (1, rows, heads, size).
        """
        q, k, v = (tensor[0].float() for tensor in (query, key, value))
        if use_qk_l2norm_in_kernel:
            q, k = (tensor * torch.rsqrt((tensor * tensor).sum(-1, keepdim=True) + 1e-6) for tensor in (q, k))
        heads = v.shape[1]
        q, k = (tensor.repeat_interleave(heads // tensor.shape[1], dim=1) for tensor in (q, k))
        q, k, v = (q * q.shape[-1] ** -0.5)[:, :, None, :], k[:, :, None, :], v[:, :, None, :]
        columns = k.transpose(2, 3)
        decay = by_lanes(torch.exp, g[0].flatten(1).float()).reshape(len(v), heads, -1, 1)
        rate = beta[0].float()[:, :, None, None]

        def step(before: Any, first: int, end: int, keep: int) -> tuple[Any, Versions]:
            state = v.new_zeros(heads, k.shape[3], v.shape[3]) if before is None else before
            made, out = Made(state, first, end, keep), []
            for row in range(first, end):
                state = torch.mul(state, decay[row], out=made.unused(state, row))
                error = (v[row] - torch.bmm(k[row], state)) * rate[row]
                made.add(state.addcmul_(columns[row], error), row)
                out.append(torch.bmm(q[row], state))
            return torch.stack(out)[:, :, 0], made.versions

        return self._states.advance(step)[None].to(value.dtype), None

    def wkv(
        self,
        time_decay: Any,
        time_first: Any,
        key: Any,
        value: Any,
        **_: Any,
    ) -> tuple[Any, None]:
        """RWKV-4 (Peng et al. 2023, arXiv 2305.13048, equation 16). `key` and `value` have shape (1, rows,
        size). A state holds the sums above and below the fraction bar, and the logarithm of what both were
        divided by, so that they stay small. Only that is computed row after row.
        """
        k, v = key[0].float(), value[0].float()
        decay = -torch.exp(time_decay.float())
        added = torch.stack([v, torch.ones_like(v)], dim=1)

        def step(before: Any, first: int, end: int, keep: int) -> tuple[Any, Versions]:
            if before is None:
                before = k.new_zeros(3, k.shape[1])
                before[2] = NOTHING
            state, held = before, []
            made = Made(state, first, end, keep)
            for row in range(first, end):
                held.append(state)
                aged = state[2] + decay
                top = torch.maximum(aged, k[row])
                new = torch.exp(k[row] - top) * added[row]
                sums = torch.addcmul(new, state[:2], torch.exp(aged - top))
                state = torch.cat([sums, top[None]])
                made.add(state, row)
            return torch.stack(held), made.versions

        above, below, past = self._states.advance(step).unbind(1)
        boosted = k + time_first.float()
        top = torch.maximum(past, boosted)
        old, new = by_lanes(torch.exp, past - top), by_lanes(torch.exp, boosted - top)
        return ((old * above + new * v) / (old * below + new)).to(value.dtype)[None], None

    def gated_unit(self, added: Any, decay: Any) -> Any:
        """Real-gated linear recurrent units (De et al. 2024, arXiv 2402.19427, equation 4): the state is what
        it was times `decay`, and what is `added`. Both have shape (rows, size).
        """

        def step(before: Any, first: int, end: int, keep: int) -> tuple[Any, Versions]:
            state = added.new_zeros(added.shape[1]) if before is None else before
            made, out = Made(state, first, end, keep), []
            for row in range(first, end):
                state = torch.addcmul(added[row], state, decay[row])
                made.add(state, row)
                out.append(state)
            return torch.stack(out), made.versions

        return self._states.advance(step)

    def lightning(self, query: Any, key: Any, value: Any, slope: Any) -> Any:
        """Lightning attention (Qin et al. 2024, arXiv 2401.04658): attention without a softmax, whose sum of
        keys and values decays by exp(-`slope`) in every row. Shapes (rows, heads, size) and (heads, 1, 1).
        """
        q, k, v = query.float()[:, :, None, :], key.float()[..., None], value.float()[:, :, None, :]
        decay = torch.exp(-slope.float())

        def step(before: Any, first: int, end: int, keep: int) -> tuple[Any, Versions]:
            state = v.new_zeros(k.shape[1], k.shape[2], v.shape[3]) if before is None else before
            made, out = Made(state, first, end, keep), []
            for row in range(first, end):
                state = torch.mul(state, decay, out=made.unused(state, row))
                made.add(state.addcmul_(k[row], v[row]), row)
                out.append(torch.bmm(q[row], state))
            return torch.stack(out)[:, :, 0], made.versions

        return self._states.advance(step)

    def matrix_memory(  # noqa: PLR0917 - three tensors, two gates
        self, query: Any, key: Any, value: Any, opening: Any, keeping: Any, eps: float
    ) -> Any:
        """The memory of xLSTM (Beck et al. 2024, arXiv 2405.04517, equations 19 to 27). `query`, `key` and
        `value` have shape (rows, heads, size), the gates before their exp() and sigmoid() (rows, heads).

        A state is the memory and, as one more column, the sum by which what is read is divided. Both were
        divided by what the gates made largest, which is a state of its own, so that they stay small.
        """
        q, k, v = (tensor.float() for tensor in (query, key, value))
        keeping = by_lanes(functional.logsigmoid, keeping.float())
        opening = opening.float()
        past, top = self._largest(opening, keeping).unbind(1)
        decay = by_lanes(torch.exp, keeping + past - top)[:, :, None, None]
        share = by_lanes(torch.exp, opening - top)[:, :, None]
        rows = (torch.cat([v, torch.ones_like(v[..., :1])], dim=2) * share)[:, :, None, :]
        q, columns = (q * q.shape[2] ** -0.5)[:, :, None, :], k[..., None]

        def step(before: Any, first: int, end: int, keep: int) -> tuple[Any, Versions]:
            state = v.new_zeros(k.shape[1], k.shape[2], rows.shape[3]) if before is None else before
            made, out = Made(state, first, end, keep), []
            for row in range(first, end):
                state = torch.mul(state, decay[row], out=made.unused(state, row))
                made.add(state.addcmul_(columns[row], rows[row]), row)
                out.append(torch.bmm(q[row], state))
            return torch.stack(out)[:, :, 0], made.versions

        read = self._states.advance(step)
        below = torch.maximum(read[..., -1].abs(), by_lanes(torch.exp, -top)) + eps
        return read[..., :-1] / below[..., None]

    def _largest(self, opening: Any, keeping: Any) -> Any:
        """The largest logarithm of a share that any row has in the memory, before and after each row. Shapes
        (rows, heads) in, (rows, 2, heads) out.
        """

        def step(before: Any, first: int, end: int, keep: int) -> tuple[Any, Versions]:
            held = [opening.new_zeros(opening.shape[1]) if before is None else before]
            made = Made(held[0], first, end, keep)
            for row in range(first, end):
                held.append(torch.maximum(keeping[row] + held[-1], opening[row]))
                made.add(held[-1], row)
            tops = torch.stack(held)
            return torch.stack([tops[:-1], tops[1:]], dim=1), made.versions

        return self._states.advance(step)


def _seen(before: Any, rows: Any, past: int, keep: int) -> tuple[Any, Versions]:
    """A sequence's rows with the `past` ones before them, and its versions, each the last `past` rows."""
    if before is None:
        before = rows.new_zeros(past, rows.shape[1])
    seen = torch.cat([before, rows])
    held = min(len(rows), keep - 1)
    tail = seen[len(rows) - held :].clone()
    return seen, [tail[place : place + past] for place in range(held + 1)]
