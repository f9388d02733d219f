"""Work on other threads that a request waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


async def results_of(futures: Sequence[Future[Result]]) -> list[Result]:
    """The results of all. If this is cancelled or one fails, what has not begun never does, and what has
    begun ends first: it holds memory until then. Raises what the first that fails raises.
    """
    try:
        return await asyncio.gather(*map(asyncio.wrap_future, futures))
    finally:
        begun = [future for future in futures if not future.cancel() and not future.done()]
        if begun:
            await asyncio.gather(*map(asyncio.wrap_future, begun), return_exceptions=True)
