"""Whether rows can be computed by themselves here: with Triton, which comes with torch on Linux."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch

from foretoken.backends.torch.attention import Style
from foretoken.backends.torch.batch import PATH, Batch, make_batch
from foretoken.backends.torch.kv import KVCache
from foretoken.backends.torch.lean import Kernels
from foretoken.errors import first_line
from foretoken.types import Rows

logger = logging.getLogger(__name__)

ROWS = 2


@cache
def find_row_kernels(device: Any, dtype: Any, heads: int, groups: int, size: int) -> Kernels | None:
    """Those of row_attention.py for models with so many query heads, and heads of keys, of `size` numbers.
    They are compiled here; None, and a warning, where that fails.
    """
    try:
        with torch.inference_mode():
            return _compiled(device, dtype, heads, groups, size)
    except Exception as error:  # noqa: BLE001 - Triton's, a compiler's, the driver's
        logger.warning(
            "Triton cannot compile kernels here (%s): forwards take longer, and their bits may depend on how "
            "many rows they have. It needs a C compiler.",
            first_line(error),
        )
        return None


def _compiled(device: Any, dtype: Any, heads: int, groups: int, size: int) -> Kernels:
    from foretoken.backends.torch.row_attention import attend_rows, turn_rows

    layer = KVCache(1, ROWS, dtype=dtype, device=device).layer(0, groups, size, size)
    rows = torch.zeros(ROWS, heads + 2 * groups, size, dtype=dtype, device=device)
    turn_rows(rows.narrow(1, 0, heads), None, 0.0, (rows[:, :1], rows[:, :1]))
    kv = rows.narrow(1, heads, 2 * groups).view(ROWS, 2, groups, size)
    prompt = make_batch([Rows(0, 0, range(ROWS), ROWS)], device)
    paths = torch.zeros(ROWS, PATH, dtype=torch.long, device=device)
    for batch in (prompt, Batch(prompt.numbers, prompt.wanted, (), {"paths": paths})):
        attend_rows(layer, batch, rows.narrow(1, 0, heads), kv, style=Style(1.0))
    return Kernels(attend_rows, turn_rows)
