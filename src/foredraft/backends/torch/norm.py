"""The root mean square norm (Zhang and Sennrich 2019), rounded as in transformers."""

from __future__ import annotations

from typing import Any

import torch


def rms_norm(rows: Any, weight: Any, eps: float) -> Any:
    """Each row of `rows`, shape (…, size), divided by its root mean square, times `weight`.

    In fp32 its bits equal transformers'. In shorter formats torch needs nine calls on a processor, each with
    its own kernel that is no longer in the caches: a seventh of a forward with one row. A layer norm is one
    call, and on (x, -x), whose mean is zero, it is the same function of x.
    """
    if rows.dtype == torch.float32 or rows.device.type != "cpu":
        return torch.nn.functional.rms_norm(rows, rows.shape[-1:], eps=eps).mul_(weight)
    size = rows.shape[-1]
    both = torch.layer_norm(torch.cat((rows, -rows), -1), (2 * size,), eps=eps)
    return both.narrow(-1, 0, size) * weight
