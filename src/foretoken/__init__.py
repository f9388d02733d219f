"""Foretoken: local language models, faster, by speculative decoding that changes nothing in the output.

>>> from foretoken import Engine
>>> with Engine.load() as engine:  # doctest: +SKIP
...     print(engine.generate("The capital of France is", max_tokens=8).text)
"""

import logging
from importlib.metadata import version

from foretoken.engine.engine import Engine
from foretoken.errors import ForetokenError
from foretoken.types import (
    Completion,
    Constraint,
    Event,
    FinishEvent,
    FinishReason,
    SamplingParams,
    SpeculationStats,
    TokenEvent,
)

__version__ = version("foretoken")

# A library leaves logging to the program that uses it; the command line shows warnings itself.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "Completion",
    "Constraint",
    "Engine",
    "Event",
    "FinishEvent",
    "FinishReason",
    "ForetokenError",
    "SamplingParams",
    "SpeculationStats",
    "TokenEvent",
    "__version__",
]
