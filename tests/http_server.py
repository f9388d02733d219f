"""The server on a port of this machine, around models without weights."""

from __future__ import annotations

import asyncio
import string
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import uvicorn

from foretoken import Engine
from foretoken.server.app import build_app
from foretoken.server.pool import ModelPool
from foretoken.testing import FakeModel, markov_logits
from foretoken.types import Logits

LETTERS = [ord(letter) for letter in string.ascii_lowercase + " "]
END = 256


def writing_logits(*, end: float = -5.0) -> object:
    """Random text of small letters that now and then ends."""
    chain = markov_logits(258, order=2, scale=3.0)

    def logits(prefix: Sequence[int]) -> Logits:
        row = np.full(258, -50.0, np.float32)
        row[LETTERS] = chain(prefix)[LETTERS]
        row[END] = end
        return row

    return logits


def writing_model(*, end: float = -5.0, sequences: int = 4, context_length: int = 4096) -> FakeModel:
    return FakeModel(258, logits=writing_logits(end=end), sequences=sequences, context_length=context_length)  # type: ignore[arg-type]


@dataclass(slots=True)
class Running:
    """A server that runs: its address, and the engines it has made."""

    url: str
    engines: dict[str, Engine] = field(default_factory=dict)


@contextmanager
def serving(
    *names: str, speculate: str = "suffix;ngram-simple:n=3,m=8", **options: int | float
) -> Iterator[Running]:
    """A server with a model for each name ("fake" if none), stopped at the end."""
    running = Running("")

    def loader(name: str) -> Engine:
        engine = Engine(writing_model(**options))  # type: ignore[arg-type]
        engine.set_speculation(speculate)
        running.engines[name] = engine
        return engine

    chosen = names or ("fake",)
    pool = ModelPool({name: partial(loader, name) for name in chosen}, chosen[0])
    config = uvicorn.Config(build_app(pool), host="127.0.0.1", port=0, log_level="error", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the server did not start")
        threading.Event().wait(0.01)
    running.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield running
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"
