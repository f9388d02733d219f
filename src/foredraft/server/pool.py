"""The server's models: each on its own worker, loaded on first use.

With a memory budget, the least recently used model is unloaded to make room. A model that is answering
requests is never unloaded for another.

A user of a model holds it: while `Served.hold` is entered it is not unloaded for another model, and work in
`Served.prepare` ends before it is freed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, TypedDict, TypeVar

from foredraft.embedding import Embedder, ModelKind
from foredraft.engine.engine import Engine
from foredraft.engine.images import errors_of, unseen
from foredraft.engine.loading import thaw_heap
from foredraft.errors import (
    CapacityError,
    ConfigError,
    ForedraftError,
    ModelError,
    ModelNotFoundError,
    RequestError,
    first_line,
    quoted,
)
from foredraft.images import PreparedImage
from foredraft.protocols import Model, Tokenizer, Vision
from foredraft.sampling.constraint import get_ready
from foredraft.server.embedding.served import ServedEmbedder
from foredraft.server.embedding.worker import EmbedderWorker
from foredraft.server.held import Held
from foredraft.server.image_settings import ImageSettings
from foredraft.server.metrics import Metrics, Watch
from foredraft.server.picture_parts import far_images_in, fetched_for, images_in, pixels_in, with_pictures
from foredraft.server.pixel_room import PixelRoom
from foredraft.server.request_log import current
from foredraft.server.settings import AdapterSettings, Limits, ModelSettings, ServerSettings
from foredraft.server.tools.detect import describe_tools
from foredraft.server.transcript import beginning
from foredraft.server.worker import EngineWorker, Job, Ticket
from foredraft.types import Event, Message, ModelInfo

logger = logging.getLogger(__name__)

Load = Callable[[ModelSettings], Engine]
Made = TypeVar("Made")


class Embedders(NamedTuple):
    """How it is found out what a model is for, which reads its files' headers, and how one that does not
    generate is loaded.
    """

    kind: Callable[[ModelSettings], ModelKind]
    load: Callable[[ModelSettings], Embedder]


Measure = Callable[[ModelSettings], int]
"""Estimates a model's memory use in bytes before it is loaded."""

State: TypeAlias = Literal["unloaded", "loading", "loaded", "failed"]

PREPARING = 4
"""Threads that prepare requests, for all models together: they share the processor with the forwards."""

FETCHING = 8
"""Threads that fetch images, for all models together: they wait for the network."""

FETCHED_TOGETHER = 2
"""How many requests with as many images as are allowed may fetch them at once: their bytes are in memory."""


@dataclass(slots=True, kw_only=True)
class Served(Held):
    """A loaded model that generates, under the name that clients use."""

    worker: EngineWorker
    tokenizer: Tokenizer
    picture_threads: ThreadPoolExecutor
    images: ImageSettings
    room: PixelRoom
    fetch_threads: ThreadPoolExecutor
    fetch_room: PixelRoom
    """That of images which are fetched, before they are decoded: a slow address keeps only those waiting."""
    eyes: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "foredraft-images"))
    """The thread that encodes the model's images, one after another."""
    vision: Vision | None = None

    @property
    def kind(self) -> ModelKind:
        return "generative"

    async def prepared(
        self, messages: Sequence[Message], make: Callable[[Sequence[Message]], tuple[Made, Job]]
    ) -> tuple[Made, Job]:
        """What `make` makes of the messages, and the request with the rows of its images encoded. Raises what
        `pictured`, `make` and `Vision.prepare` raise.
        """
        async with self.pictured(messages) as pictured:
            made, job = await self.prepare(lambda: make(pictured))
            return made, await self._seen(job)

    @asynccontextmanager
    async def pictured(self, messages: Sequence[Message]) -> AsyncIterator[Sequence[Message]]:
        """The messages with their images read (`with_pictures`), which have a share of the room for all
        requests' pixels meanwhile. Raises RequestError, QueueFullError.
        """
        images = images_in(messages) if self.vision is not None else 0
        far = far_images_in(messages) if images and self.images.remote else 0
        most_waiting = self.limits.max_waiting
        async with self.fetch_room.share(far, most_waiting) as fetching:
            fetched = await fetched_for(messages, self.vision, self.images, self.fetch_threads)
            async with self.room.share(self.images.most(images), most_waiting) as share:
                pictured = await with_pictures(
                    messages, self.vision, self.images, self.picture_threads, fetched
                )
                fetched.clear()
                fetching.shrink(0)
                share.shrink(pixels_in(pictured))
                yield pictured

    async def _seen(self, job: Job) -> Job:
        """The request with the rows of its images encoded. Other requests' images take turns with them, and
        none is begun after this is cancelled. Raises what `Vision.prepare` raises.
        """
        vision = self.vision
        if vision is None:
            return job
        prepared: dict[str, PreparedImage] = {}
        for key, image in unseen(job.images).items():
            with errors_of(image.where):
                prepared[key] = await self._on(self.eyes, partial(vision.prepare, image))
        return job.seeing(prepared) if prepared else job

    async def close(self) -> None:
        """As `Held.close`."""
        await Held.close(self)
        self.eyes.shutdown(wait=False)

    async def stream(self, job: Job) -> AsyncGenerator[Sequence[Event], None]:
        """The events of a request (see `EngineWorker.stream`), counted, logged, and stopped on request."""
        entry = current()
        transcript = entry.transcript  # of the entry it is taken away when recording is switched off
        if transcript is not None and not transcript.begun:
            transcript.begun = True
            transcript.prompt = await self.prepare(lambda: beginning(self.tokenizer, job.prompt, job.images))
        ticket = Ticket(notice=entry.stopped)
        if job.deadline_s is not None:
            job = replace(job, deadline_s=entry.left_of(job.deadline_s))
        watch = Watch(time.perf_counter(), prompt=job.prompt, ticket=ticket)
        with self.hold():
            async with aclosing(
                self.metrics.watch(self.name, self.worker.stream(job, ticket), watch)
            ) as answer:
                async for events in answer:
                    yield events


@dataclass(frozen=True, slots=True)
class Lease:
    """A model as a request asked for it: under its own name, or under that of its LoRA adapter, with which
    the answer is computed then.
    """

    model: Served
    name: str
    adapter: str = ""


class _Common(TypedDict):
    """The fields of `Held`, but for the worker."""

    name: str
    info: ModelInfo
    settings: ModelSettings
    metrics: Metrics
    limits: Limits
    threads: ThreadPoolExecutor


class ModelPool:
    """The models of `settings`, whose engines are created by `load`, and those that embed by what `embedder`
    returns. `metrics` counts what they do.

    `measure` estimates a model's size before it is loaded; without it the budget may be exceeded while a
    model loads.
    """

    def __init__(
        self,
        settings: ServerSettings,
        load: Load,
        metrics: Metrics | None = None,
        measure: Measure = lambda _: 0,
        embedders: Embedders | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = metrics or Metrics()
        self._load = load
        self._measure = measure
        self._embedders = embedders
        self._kinds: dict[ModelSettings, ModelKind] = {}
        self._threads = ThreadPoolExecutor(PREPARING, "foredraft-prepare")
        self._picture_threads = ThreadPoolExecutor(PREPARING, "foredraft-pictures")
        self._room = PixelRoom(settings.images.max_total_pixels)
        self._fetch_threads = ThreadPoolExecutor(FETCHING, "foredraft-fetches")
        self._fetch_room = PixelRoom(FETCHED_TOGETHER * settings.images.max_images)
        self._loaded: dict[str, Held] = {}
        self._changing = asyncio.Lock()
        self._asked: list[str] = []
        """A model's name for each caller that waits until it is loaded."""
        self._failed: dict[str, str] = {}
        """Why loading a model failed the last time."""
        self.created = int(time.time())
        self.on_request: Callable[[], None] = lambda: None
        """Called whenever a model is asked for."""
        self.where: Callable[[str], str] = "Model {}".format
        """Says where the settings of a model are, for errors in them."""

    @property
    def names(self) -> list[str]:
        """The names of all models."""
        return list(self.settings.models)

    @property
    def adapters(self) -> Mapping[str, str]:
        """The names of all adapters, each with that of its model."""
        models = self.settings.models.items()
        return {adapter.name: name for name, model in models for adapter in model.adapters}

    @property
    def loaded(self) -> Mapping[str, Held]:
        """The models in memory."""
        return dict(self._loaded)

    @property
    def engines(self) -> Mapping[str, Served]:
        """Those of them that generate."""
        return {name: held for name, held in self._loaded.items() if isinstance(held, Served)}

    @property
    def embedders(self) -> Mapping[str, ServedEmbedder]:
        """Those of them that embed or rerank."""
        return {name: held for name, held in self._loaded.items() if isinstance(held, ServedEmbedder)}

    def state_of(self, name: str) -> tuple[State, str | None]:
        """Whether a model is in memory, and why not if that failed. A model that waits until another is
        loaded counts as loading.
        """
        if name in self._asked:
            return "loading", None
        if name in self._loaded:
            return ("loaded", None) if self._usable(name) else ("failed", "The engine has stopped.")
        return ("failed", self._failed[name]) if name in self._failed else ("unloaded", None)

    def is_outdated(self, name: str) -> bool:
        """Whether a model in memory has to be loaded again for its settings."""
        served = self._loaded.get(name)
        return served is not None and self._outdated(served)

    def resolve(self, name: str | None) -> str:
        """The model with this name or alias, or the default for None. Raises ModelNotFoundError."""
        found = self.settings.find_model(name)
        if found is not None:
            return found
        if not self.settings.models:
            raise ModelNotFoundError(
                "This server has no model yet.",
                hint="Pull one on the server's page, or with 'foredraft models pull REPO', and add it there.",
            )
        raise ModelNotFoundError(
            f"There is no model {quoted(name)}.",
            hint=f"Available: {', '.join([*self.names, *self.adapters])}.",
        )

    async def kind_of(self, name: str) -> ModelKind | None:
        """What a model is for; None if that cannot be told, because its files are gone or damaged."""
        if (held := self._loaded.get(name)) is not None:
            return held.kind
        settings = self.settings.models.get(name)
        if settings is None or self._embedders is None:
            return "generative"
        if settings not in self._kinds:
            try:
                self._kinds[settings] = await asyncio.to_thread(self._embedders.kind, settings)
            except (ForedraftError, OSError):
                return None
        return self._kinds[settings]

    async def get(self, name: str | None = None) -> Held:
        """The model with this name, loaded if needed; for an adapter's name the one that has it. Raises
        ModelNotFoundError, CapacityError, and what loading raises.
        """
        self.on_request()
        found = asked = self.answering(name)
        if not self._usable(found) or self._renewable(found, name):
            self._asked.append(asked)
            try:
                async with self._changing:
                    found = self.answering(name)  # the settings may have changed meanwhile
                    if self._usable(found) and self._renewable(found, name):
                        await self._stop(self._loaded[found])
                        found = self.answering(name)
                    if not self._usable(found):
                        await self._replace(found)
            finally:
                self._asked.remove(asked)
        served = self._loaded[found]
        if self._behind(served, name):
            served.draining = True
            raise _not_yet(served, self.settings.find_adapter(name))
        served.last_used = time.monotonic()
        return served

    def leased(self, served: Served, name: str | None) -> Lease:
        """What `get` has just returned for this name, with the adapter of that name if it is one."""
        adapter = self.settings.find_adapter(name)
        return Lease(served, served.name) if adapter is None else Lease(served, adapter.name, adapter.name)

    def _behind(self, served: Held, name: str | None) -> bool:
        """Whether a loaded model cannot answer for this name before it is loaded again for its settings."""
        adapter = self.settings.find_adapter(name)
        return served.draining or (adapter is not None and adapter not in served.settings.adapters)

    def _renewable(self, name: str, asked: str | None) -> bool:
        """Whether a loaded model has to be loaded again to answer for a name, and is idle."""
        served = self._loaded[name]
        return not served.holders and self._behind(served, asked)

    def answering(self, name: str | None) -> str:
        """The model that answers requests for this name. Raises ModelNotFoundError."""
        return self.settings.answering(name) or self.resolve(name)

    def _usable(self, name: str) -> bool:
        """Whether a model is loaded and its engine has not failed since."""
        return name in self._loaded and self._loaded[name].worker.alive

    async def _replace(self, name: str) -> None:
        """Load a model that is not loaded, or whose engine has failed. Raises what that raises."""
        if (ended := self._loaded.get(name)) is not None:
            await self._stop(ended)  # there may be no memory for both
        self._failed.pop(name, None)
        try:
            self._loaded[name] = await self._start(name)
        except Exception as error:  # noqa: BLE001 - raised again
            found = _of_settings(self.where(name), error)
            known = isinstance(found, ForedraftError)
            if name in self.settings.models:  # else it was removed meanwhile
                self._failed[name] = str(found) if known else f"Unexpected error: {first_line(found)}"
            raise found from error.__cause__

    async def _start(self, name: str) -> Held:
        settings = self.settings.models[name]
        await self._make_room(await asyncio.to_thread(self._measure, settings))
        embedders = self._embedders
        if embedders is not None and await asyncio.to_thread(embedders.kind, settings) != "generative":
            return await self._start_embedder(name, settings, lambda: embedders.load(settings))
        worker = EngineWorker(lambda: self._load(settings))
        await worker.start()
        try:
            model = await worker.call(self._set_up)
            await self._make_room(model.info.held_bytes)
            await asyncio.wrap_future(self._threads.submit(get_ready, model.tokenizer))
            await asyncio.wrap_future(self._threads.submit(check_template, name, model.tokenizer))
        except BaseException:
            await worker.close()
            raise
        return Served(
            worker=worker,
            tokenizer=model.tokenizer,
            picture_threads=self._picture_threads,
            images=self.settings.images,
            room=self._room,
            fetch_threads=self._fetch_threads,
            fetch_room=self._fetch_room,
            vision=model.vision,
            **self._held(name, settings, model.info),
        )

    async def _start_embedder(
        self, name: str, settings: ModelSettings, load: Callable[[], Embedder]
    ) -> ServedEmbedder:
        worker = EmbedderWorker(load)
        embedder = await worker.start()
        try:
            await self._make_room(embedder.info.held_bytes)
        except BaseException:
            await worker.close()
            raise
        common = self._held(name, settings, embedder.info)
        return ServedEmbedder(worker=worker, embedder=embedder, tokenizer=embedder.tokenizer, **common)

    def _held(self, name: str, settings: ModelSettings, info: ModelInfo) -> _Common:
        return {
            "name": name,
            "info": info,
            "settings": settings,
            "metrics": self.metrics,
            "limits": self.settings.limits,
            "threads": self._threads,
        }

    def _set_up(self, engine: Engine) -> Model:
        engine.max_waiting = self.settings.limits.max_waiting
        return engine.model

    async def _make_room(self, size: int) -> None:
        """Unload the least recently used models until one of `size` bytes fits the budget."""
        budget = self.settings.memory_budget_bytes
        if budget is None:
            return
        used = sum(served.info.held_bytes for served in self._loaded.values())
        leaving: list[Held] = []
        for served in sorted(self._loaded.values(), key=lambda served: served.last_used):
            if used + size <= budget:
                break
            if not served.settings.pinned and not served.holders:
                leaving.append(served)
                used -= served.info.held_bytes
        if used + size > budget:  # fails before anything is unloaded in vain
            raise _no_room()
        for served in leaving:
            if served.holders:  # taken meanwhile
                raise _no_room()
            await self._stop(served)

    async def _stop(self, served: Held) -> None:
        del self._loaded[served.name]
        logger.info("Unloading %s", served.name)
        await served.close()
        thaw_heap()
        self.metrics.unloaded(served.name)

    @property
    def busy(self) -> bool:
        """Whether a model is in use."""
        return any(served.holders for served in self._loaded.values())

    async def unload(self, name: str) -> bool:
        """Free a model; its running requests end with an error. Returns whether it was loaded."""
        found = self.resolve(name)
        async with self._changing:
            self._failed.pop(found, None)
            served = self._loaded.get(found)
            if served is not None:
                await self._stop(served)
        return served is not None

    async def sweep(self) -> None:
        """Unload models that have been idle for too long and those that are not served any more, and load
        again those whose settings have changed. One that cannot be loaded is `failed`, and logged.
        """
        for served in list(self._loaded.values()):
            async with self._changing:
                if served.holders or self._loaded.get(served.name) is not served:
                    continue
                if self._forgotten(served) or served.name not in self.settings.models:
                    await self._stop(served)
                elif self._outdated(served):
                    await self._renew(served)

    async def _renew(self, served: Held) -> None:
        """Load an idle model again with its new settings. It does not count as used by that."""
        self._asked.append(served.name)
        try:
            await self._stop(served)
            if served.name in self.settings.models:  # not removed meanwhile
                await self._replace(served.name)
                self._loaded[served.name].last_used = served.last_used
        except Exception:
            reason = self._failed.get(served.name)
            logger.exception("Loading %s again with its new settings failed: %s", served.name, reason)
        finally:
            self._asked.remove(served.name)

    def _forgotten(self, served: Held) -> bool:
        timeout = self.settings.idle_timeout_s
        if timeout is None or served.settings.pinned:
            return False
        return time.monotonic() - served.last_used > timeout

    def use(self, settings: ServerSettings) -> None:
        """Apply new settings from the next request on. A model that has to be loaded again for them is, by
        the next `sweep` that finds it idle, and answers with its old settings until then; but for an adapter
        that it does not have. Once a request asked for one it takes no requests until it was loaded again.
        """
        for name in self._failed.keys() & self.settings.models.keys():
            if settings.models.get(name) != self.settings.models[name]:
                del self._failed[name]
        self.settings = settings
        self._room.most = settings.images.max_total_pixels
        self._fetch_room.most = FETCHED_TOGETHER * settings.images.max_images
        for name, served in self._loaded.items():
            served.limits = settings.limits
            if isinstance(served, Served):
                served.images = settings.images
            model = settings.models.get(name)
            if model is not None and model.loads_like(served.settings):
                served.settings, served.draining = model, False

    def _outdated(self, served: Held) -> bool:
        return self.settings.models.get(served.name) is not served.settings

    async def close(self) -> None:
        """End all requests and free all models."""
        async with self._changing:
            for served in list(self._loaded.values()):
                await self._stop(served)
        for threads in (self._threads, self._picture_threads, self._fetch_threads):
            threads.shutdown(wait=False, cancel_futures=True)


def check_template(name: str, tokenizer: Tokenizer) -> None:
    """Determine the abilities of a model's chat template, and log a warning if it is unusable, or writes tool
    calls in an unknown form.
    """
    known, note = True, ""
    try:
        traits = tokenizer.template_traits
        error = traits.error
        known, note = describe_tools(tokenizer.chat_template or "", traits.variables)
    except ForedraftError as failed:  # an error of the child process, not of the template: requests report it
        error = failed.message
    if not known:
        logger.warning("Tools of %s: %s", name, note)
    if error is not None:
        logger.warning(
            "The chat template of %s cannot be used, so the model only accepts prompts without messages. %s",
            name,
            error,
        )


def _of_settings(where: str, error: Exception) -> Exception:
    """The error of a model that cannot be loaded, with the place of its settings if they are wrong."""
    if isinstance(error, RequestError):  # such as a context that is too long: no request has chosen it
        error = ConfigError(error.message, hint=error.hint, setting=error.setting)
    if isinstance(error, ConfigError | ModelError):
        error.message = f"{where}: {error.message}"
    return error


def _not_yet(served: Held, adapter: AdapterSettings | None) -> CapacityError:
    what = f"{served.name} is" if adapter is None else f"{adapter.name} is not loaded yet: {served.name} is"
    return CapacityError(
        f"{what} loaded again for its changed settings once its running requests have ended.",
        hint="Try again then.",
    )


def _no_room() -> CapacityError:
    return CapacityError(
        "Not enough memory for this model beside those in use.", hint="Try again later, or unload a model."
    )
