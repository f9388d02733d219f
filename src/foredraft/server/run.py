"""Runs the application until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic

import uvicorn

from foredraft.config import OtherPrograms
from foredraft.embedding import Embedder, ModelKind
from foredraft.engine.embedding import kind_of, load_embedder
from foredraft.engine.engine import Engine
from foredraft.engine.loading import freeze_heap
from foredraft.engine.options import EngineOptions, model_options
from foredraft.errors import CapacityError, ConfigError, ForedraftError
from foredraft.library import models_dir, resolve, size_of
from foredraft.library.adapter_files import files_of
from foredraft.library.mmproj import NONE as NO_MMPROJ
from foredraft.library.mmproj import find_mmproj
from foredraft.library.repository import repository_of
from foredraft.server.allocator import give_back_large_blocks
from foredraft.server.app import build_app
from foredraft.server.connection import (
    STOPPING_LOOK_S,
    STOPPING_S,
    Connection,
    Patience,
    watch,
)
from foredraft.server.console.parts import Parts
from foredraft.server.idle_training import IdleTraining, check_packages, make_command, spawner
from foredraft.server.pool import Embedders, ModelPool
from foredraft.server.settings import ModelSettings, ServerSettings
from foredraft.server.taking import Reload
from foredraft.server.telemetry import from_environment

logger = logging.getLogger(__name__)

POLL_S = 0.1
"""Seconds between checks for a stop signal while the model loads."""


class _Server(uvicorn.Server):
    """Loads the first model, if there is one, before it listens. A signal during loading ends the process at
    once, even if the loading thread has not finished.
    """

    def __init__(
        self, config: uvicorn.Config, pool: ModelPool, listening: Callable[[str | None, str], None]
    ) -> None:
        super().__init__(config)
        self._pool = pool
        self._listening = listening
        self._watching: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        name: str | None = None
        if self._pool.settings.models:
            loading = asyncio.ensure_future(self._pool.get())
            while not loading.done() and not self.should_exit:
                await asyncio.wait([loading], timeout=POLL_S)
            if not loading.done():
                loading.cancel()
                return
            name = (await loading).info.name
        self._watch(Patience())
        await super().startup(sockets)
        for server in self.servers:
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                address = f"[{host}]" if ":" in host else host
                self._listening(name, f"http://{address}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._watch(Patience(STOPPING_S, STOPPING_S, STOPPING_S, since=monotonic()), STOPPING_LOOK_S)
        await super().shutdown(sockets)
        if self._watching is not None:
            self._watching.cancel()

    def _watch(self, patience: Patience, every_s: float = 1.0) -> None:
        """Close connections whose clients exceed the time limits, from now on."""
        if self._watching is not None:
            self._watching.cancel()
        self._watching = asyncio.create_task(watch(self.server_state.connections, patience, every_s))


def run_server(
    settings: ServerSettings,
    *,
    allow_public: bool = False,
    reload: Reload | None = None,
    listening: Callable[[str | None, str], None],
    console: Parts | None = None,
    loaded: Callable[[Engine], None] | None = None,
    other_programs: OtherPrograms | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Serve until interrupted; then running requests are finished first, and a second interrupt ends them.
    `listening` is called with the first model's name (None without models) and the URL without a path.
    `reload` returns changed settings. `console`: what the page works with. `loaded` is called with every new
    engine on its own thread, before its first request. `other_programs` as in `Engine.load`. `environment`:
    of child processes of `idle_training`, and what configures OpenTelemetry.

    Raises what loading the first model raises, and CapacityError if the port is in use.
    """
    host, port = settings.host, settings.port
    check_free(host, port)
    give_back_large_blocks()
    pool = make_pool(settings, loaded, other_programs)
    training = _training(settings, other_programs, environment or {})
    app = build_app(
        pool,
        allow_public=allow_public,
        reload=reload,
        training=training,
        console=console,
        telemetry=from_environment(environment or {}),
    )
    config = uvicorn.Config(
        app, host=host, port=port, http=Connection, ws="none", log_config=None, access_log=False
    )
    _Server(config, pool, listening).run()


def _training(
    settings: ServerSettings, other_programs: OtherPrograms | None, environment: Mapping[str, str]
) -> IdleTraining | None:
    """What trains a head for the default model, if the settings want that. Raises ConfigError where it
    cannot, MissingDependencyError, and what finding the model raises.
    """
    name = settings.find_model(None)
    if not settings.idle_training or name is None:
        return None
    kept = model_options({"cache_dir": settings.cache_dir, "other_programs": other_programs})
    path = resolve(settings.models[name].path, models_dir(kept.cache_dir), kept.model.other_programs)
    if path.suffix != ".gguf":
        raise ConfigError(
            f"idle_training: {path.name} is not a GGUF file; heads are trained for those only.",
            hint="Remove idle_training from the settings.",
        )
    check_packages()
    command = make_command(path, settings.models[name], settings.llama_library)
    return IdleTraining(spawner(command, {**environment, "FOREDRAFT_CACHE": str(kept.cache_dir)}))


def make_pool(
    settings: ServerSettings,
    loaded: Callable[[Engine], None] | None = None,
    other_programs: OtherPrograms | None = None,
) -> ModelPool:
    """The models of a server; `loaded` and `other_programs` as in `run_server`."""
    return ModelPool(
        settings,
        loader(settings, loaded, other_programs),
        measure=size_on_disk(settings, other_programs),
        embedders=embedder_loader(settings, other_programs),
    )


def loader(
    settings: ServerSettings,
    loaded: Callable[[Engine], None] | None = None,
    other_programs: OtherPrograms | None = None,
) -> Callable[[ModelSettings], Engine]:
    """The function that loads a model of a server with these settings. `loaded` may reject an engine by
    raising.
    """

    def load(model: ModelSettings) -> Engine:
        options = model.engine_options()
        options["cache_dir"], options["remember"] = settings.cache_dir, settings.remember
        options["prefix_cache_gb"] = settings.prefix_cache_gb
        options["memory_budget"] = settings.memory_budget_bytes
        options["other_programs"], options["llama_library"] = other_programs, settings.llama_library
        engine = Engine.load(model.path, speculate=model.speculation(), **options)
        for note in engine.notes:
            logger.info("%s: %s", engine.model.info.name, note)
        try:
            if loaded is not None:
                loaded(engine)
            freeze_heap()
        except BaseException:
            engine.close()
            raise
        return engine

    return load


def embedder_loader(settings: ServerSettings, other_programs: OtherPrograms | None = None) -> Embedders:
    """The functions for models that do not generate, of a server with these settings."""

    def options_of(model: ModelSettings) -> EngineOptions:
        options = model.engine_options()
        options["cache_dir"], options["llama_library"] = settings.cache_dir, settings.llama_library
        options["other_programs"] = other_programs
        return options

    def kind(model: ModelSettings) -> ModelKind:
        found = kind_of(model.path, options_of(model))
        return "embedding" if found == "generative" and model.pooling is not None else found

    def load(model: ModelSettings) -> Embedder:
        return load_embedder(model.path, options_of(model), model.pooling)

    return Embedders(kind, load)


def size_on_disk(
    settings: ServerSettings, other_programs: OtherPrograms | None = None
) -> Callable[[ModelSettings], int]:
    """An estimate of a model's size before it is loaded: that of its files, its vision's and its adapters'
    included, or 0 if they cannot be found.
    """

    def measure(model: ModelSettings) -> int:
        try:
            kept = model_options({"cache_dir": settings.cache_dir, "other_programs": other_programs})
            files = [file for it in model.adapters for file in files_of(Path(it.path))]
            path = resolve(model.path, models_dir(kept.cache_dir), kept.model.other_programs)
            files += _vision_files(model.mmproj, path)
            return size_of(path) + sum(file.stat().st_size for file in files)
        except (ForedraftError, OSError):
            return 0  # loading it reports the error

    return measure


def _vision_files(mmproj: str | Path | None, path: Path) -> list[Path]:
    """The file of the vision of a model found by `resolve`: safetensors have theirs in them."""
    if repository_of(path) is not None:
        return []
    vision = find_mmproj(path) if mmproj is None else Path(mmproj)
    return [vision] if vision is not None and vision != NO_MMPROJ else []


def check_free(host: str, port: int) -> None:
    """Raises CapacityError if the address cannot be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            free_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
            raise CapacityError(
                f"Cannot listen on {host}:{port}: {error.strerror or error}.",
                hint="Choose another --port."
                if free_port
                else "Choose a --host that is an address of this machine.",
            ) from None
