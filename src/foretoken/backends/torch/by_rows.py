"""Whether rows can be computed by themselves here: with Triton, which comes with torch on Linux."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch

from foretoken.backends.torch.attention import Style
from foretoken.backends.torch.batch import make_batch
from foretoken.backends.torch.kv import KVCache
from foretoken.backends.torch.lean import Kernels
from foretoken.errors import first_line
from foretoken.types import Rows

logger = logging.getLogger(__name__)

SIZE = 16


@cache
def find_row_kernels(device: Any) -> Kernels | None:
    """Those of row_attention.py; None, and a warning, where they cannot be compiled."""
    try:
        from foretoken.backends.torch.row_attention import attend_rows, turn_rows

        layer = KVCache(1, 1, dtype=torch.float32, device=device).layer(0, 1, SIZE, SIZE)
        heads = torch.zeros(1, 3, SIZE, device=device)
        turn_rows(heads.narrow(1, 0, 2), None, 0.0, (heads[:, :1], heads[:, :1]))
        batch = make_batch([Rows(0, 0, (0,), 1)], device)
        attend_rows(layer, batch, heads[:, :1], heads[:, 1:, None], style=Style(1.0))
    except Exception as error:  # noqa: BLE001 - Triton's, a compiler's, the driver's
        logger.warning(
            "Triton cannot compile kernels here (%s): forwards take longer, and their bits may depend on how "
            "many rows they have. It needs a C compiler.",
            first_line(error),
        )
        return None
    return Kernels(attend_rows, turn_rows)
