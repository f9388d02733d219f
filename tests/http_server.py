"""The server on a port of this machine, around models without weights."""

from __future__ import annotations

import asyncio
import string
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np
import openai
import uvicorn

from foredraft import Engine
from foredraft.embedding import Embedder
from foredraft.server.app import build_app
from foredraft.server.connection import Connection
from foredraft.server.console.parts import Parts
from foredraft.server.pool import Embedders, ModelPool
from foredraft.server.settings import AdapterSettings, ModelSettings, SamplingDefaults, ServerSettings
from foredraft.server.taking import Reload
from foredraft.server.telemetry import Telemetry
from foredraft.testing import FakeModel, FakeVision, LogitsFunction, markov_logits
from foredraft.types import Logits

LETTERS = [ord(letter) for letter in string.ascii_lowercase + " "]
END = 256
READ = 16
"""Tokens of a prompt that the model reads, beside the last two."""


def writing_logits(*, end: float = -5.0) -> LogitsFunction:
    """Random text of small letters that now and then ends. Which text depends on the prompt's beginning."""
    chains: dict[tuple[int, ...], LogitsFunction] = {}

    def logits(prefix: Sequence[int]) -> Logits:
        beginning = tuple(prefix[:READ])
        if beginning not in chains:
            chains[beginning] = markov_logits(
                258, order=2, seed=crc32(bytes(str(beginning), "ascii")), scale=3.0
            )
        row = np.full(258, -50.0, np.float32)
        row[LETTERS] = chains[beginning](prefix)[LETTERS]
        row[END] = end
        return row

    return logits


def scripted_logits(script: str) -> LogitsFunction:
    """Answers every conversation with the same text, greedily."""
    tokens = [*script.encode(), END]

    def logits(prefix: Sequence[int]) -> Logits:
        said = bytes(token for token in prefix if token < 256).rsplit(b"assistant: ", 1)[-1]
        row = np.zeros(258, np.float32)
        row[tokens[min(len(said), len(tokens) - 1)]] = 30.0
        return row

    return logits


def writing_model(*, end: float = -5.0, sequences: int = 4, context_length: int = 4096) -> FakeModel:
    return FakeModel(258, logits=writing_logits(end=end), sequences=sequences, context_length=context_length)


@dataclass(slots=True)
class Running:
    """A server that runs: its address, and the engines it has made."""

    url: str
    engines: dict[str, Engine] = field(default_factory=dict)


def embedders_of(made: Mapping[str, Embedder]) -> Embedders:
    """These embedders, by their models' paths; all other models generate."""
    return Embedders(
        lambda model: made[model.path].traits.kind if model.path in made else "generative",
        lambda model: made[model.path],
    )


@contextmanager
def serving(
    *names: str,
    speculate: str = "suffix;ngram-simple:n=3,m=8",
    script: str | None = None,
    reload: Reload | None = None,
    settings: ServerSettings | None = None,
    embedders: Mapping[str, Embedder] | None = None,
    sampling: SamplingDefaults | None = None,
    recommended: Mapping[str, float] | None = None,
    console: Parts | None = None,
    telemetry: Telemetry | None = None,
    allow_public: bool = False,
    model: Callable[[], FakeModel] | None = None,
    adapters: tuple[AdapterSettings, ...] = (),
    around: Callable[[Any], Any] = lambda app: app,
    sees: bool = False,
    **options: int | float,
) -> Iterator[Running]:
    """A server with a model for each name ("fake" if none), and the embedders by their names, stopped at the
    end.

    `adapters` are those of every model, which has to have them. `recommended` is what the models' files say
    about sampling; `model` makes the models, and `around` wraps the application. `sees`: the models see
    images.
    """
    running = Running("")

    def make() -> FakeModel:
        if model is not None:
            return model()
        return writing_model(**options) if script is None else FakeModel(258, logits=scripted_logits(script))  # type: ignore[arg-type]

    def load(settings: ModelSettings) -> Engine:
        made = make()
        made.info = replace(made.info, recommended=recommended or {})
        if sees:
            made.vision = FakeVision()
        engine = Engine(made)
        engine.set_speculation(settings.speculation())
        running.engines[settings.path] = engine
        return engine

    models = {
        name: ModelSettings(
            path=name, speculate=speculate, adapters=adapters, sampling=sampling or SamplingDefaults()
        )
        for name in names or ("fake",)
    }
    models |= {name: ModelSettings(path=name) for name in embedders or ()}
    pool = ModelPool(
        replace(settings or ServerSettings(), models=models), load, embedders=embedders_of(embedders or {})
    )
    app = build_app(pool, reload=reload, console=console, telemetry=telemetry, allow_public=allow_public)
    config = uvicorn.Config(
        around(app), host="127.0.0.1", port=0, http=Connection, log_level="error", ws="none", access_log=False
    )
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


def client_of(running: Running) -> openai.OpenAI:
    """OpenAI's client for this server, which does not try again."""
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=30)
