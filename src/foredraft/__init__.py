"""Foredraft makes local language models faster by speculative decoding, without changing their output.

>>> from foredraft import Engine
>>> with Engine.load() as engine:  # doctest: +SKIP
...     print(engine.generate("The capital of France is", max_tokens=8).text)
"""

import logging
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine
    from foredraft.engine.scoring import Scores
    from foredraft.errors import ForedraftError
    from foredraft.images import Image
    from foredraft.pictures import read_picture
    from foredraft.types import (
        Completion,
        Constraint,
        Event,
        FinishEvent,
        FinishReason,
        SamplingParams,
        SpeculationStats,
        TokenEvent,
    )

__version__ = version("foredraft")

# A library leaves logging to the program that uses it; the command line installs a handler of its own.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "Completion",
    "Constraint",
    "Engine",
    "Event",
    "FinishEvent",
    "FinishReason",
    "ForedraftError",
    "Image",
    "SamplingParams",
    "Scores",
    "SpeculationStats",
    "TokenEvent",
    "__version__",
    "read_picture",
]

# Imported on first access: `foredraft --help` needs none of them.
_MODULES = {
    "Engine": "engine.engine",
    "Scores": "engine.scoring",
    "ForedraftError": "errors",
    "Image": "images",
    "read_picture": "pictures",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'types')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
