"""Whether attention by rows is available: with Triton, which is part of torch on Linux."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch

from foredraft.backends.torch.attention import Style
from foredraft.backends.torch.batch import PATH, Batch, make_batch
from foredraft.backends.torch.kv import KVCache
from foredraft.backends.torch.lean import Kernels
from foredraft.errors import first_line
from foredraft.types import Rows

logger = logging.getLogger(__name__)


def find_row_kernels(
    device: Any, dtype: Any, *, heads: int, groups: int, size: int, context_length: int
) -> Kernels | None:
    """The kernels of row_attention.py for models with these query heads and key heads of `size` numbers. They
    are compiled here; None, with a warning, if that fails.
    """
    try:
        with torch.inference_mode():
            return _compiled(
                device, dtype, heads=heads, groups=groups, size=size, context_length=context_length
            )
    except Exception as error:  # noqa: BLE001 - an error of Triton, a compiler or the driver
        logger.warning(
            "Triton cannot compile kernels here (%s): forwards take longer, and their bits may depend on the "
            "number of rows. Triton needs a C compiler.",
            first_line(error),
        )
        return None


@cache
def _compiled(device: Any, dtype: Any, *, heads: int, groups: int, size: int, context_length: int) -> Kernels:
    """Compile both variants: with segments, and for a batch that will hold any rows."""
    from foredraft.backends.torch.row_attention import attend_rows, turn_rows

    layer = KVCache(1, context_length, dtype=dtype, device=device).layer(0, groups, size, size)
    rows = torch.zeros(1, heads + 2 * groups, size, dtype=dtype, device=device)
    q, kv = rows.narrow(1, 0, heads), rows.narrow(1, heads, 2 * groups).view(1, 2, groups, size)
    for norms in (None, q[0]):
        turn_rows(q, norms, 0.0, (rows[:, :1], rows[:, :1]))
    prompt = make_batch([Rows(0, 0, (0,), 1)], device)
    paths = torch.zeros(1, PATH, dtype=torch.long, device=device)
    for batch in (prompt, Batch(prompt.numbers, prompt.wanted, (), {"paths": paths})):
        attend_rows(layer, batch, q, kv, style=Style(1.0))
    return Kernels(attend_rows, turn_rows)
