"""Ray Serve: an application with a front and, for each model, a deployment of replicas.

A Serve config file names `app`:

    applications:
      - name: foredraft
        import_path: foredraft.scale.ray:app
        args: {settings: /path/to/foredraft.toml}
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve._private.constants import SERVE_NAMESPACE
from ray.serve._private.replica_result import ReplicaResult
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
)
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foredraft.backends.cpu import physical_cores
from foredraft.config import OtherPrograms
from foredraft.errors import CapacityError, ConfigError, ForedraftError
from foredraft.scale.callers import Callers
from foredraft.scale.cluster import ClusterLimiter, Remote, limits_deployment
from foredraft.scale.following import Following
from foredraft.scale.front import lost, with_plain_id
from foredraft.scale.front_app import front_app
from foredraft.scale.listening import NOWHERE, check_listening
from foredraft.scale.message import Forwarded, Parts
from foredraft.scale.prefix_router import known_replicas
from foredraft.scale.replica import Replica, only
from foredraft.scale.start_error import StartError
from foredraft.server.request_log import ID, log_to
from foredraft.server.run import make_pool
from foredraft.server.settings import KeySettings, ModelSettings, ServerSettings
from foredraft.server.settings_file import read_settings, settings_of
from foredraft.server.telemetry import from_environment

logger = logging.getLogger("foredraft.server.scale")

Settings: TypeAlias = ServerSettings | Mapping[str, Any] | str | Path
"""Settings, the path of their file, or the file's tables as a mapping. A mapping with "settings" has one of
these there, and may have "environment", OpenTelemetry's variables, and "version", which says nothing: with
another one Serve deploys again.
"""

BESIDE = ("settings", "environment", "version")

READ_S = 5.0
"""Seconds that each replica has to say something to the front itself."""

LOOK_S = 5.0
"""Seconds between looks whether there is a replica, while a request waits for one."""

PATIENCE_S = 30.0
"""Seconds that a request waits for a replica where there is none."""

BUSY_S = 5.0
"""Seconds that a model has more requests than its replicas have sequences, on the average of half a minute,
before there is another one: with Serve's own 30 s requests wait for long, as a model takes time to load, too.
"""

IDLE_S = 600.0
"""Seconds that fewer replicas would do before one is taken away: as Serve does it."""

MORE = 4
"""Requests that a replica prepares while all its sequences are in use."""

FRONT_REQUESTS = 1000
"""Requests that the front relays at once; more wait in Serve's proxy."""

APP, FRONT = "foredraft", "front"
ROUTER = "foredraft.scale.prefix_router:PrefixRouter"


def app(settings: Settings) -> serve.Application:
    """The application with these settings. Their `host` and `port` do not count: Serve listens as its own
    configuration says, and without keys the front only starts where that is this machine. Raises ConfigError.
    """
    environment: Mapping[str, str] = {}
    if isinstance(settings, Mapping) and "settings" in settings and set(settings) <= set(BESIDE):
        environment, settings = settings.get("environment", {}), settings["settings"]
    file = Path(settings).absolute() if isinstance(settings, str | Path) else None
    return application(settings_from(settings), file=file, environment=environment)


def settings_from(given: Settings) -> ServerSettings:
    """Raises ConfigError."""
    if isinstance(given, Mapping):
        return settings_of(given, Path("settings"))
    return given if isinstance(given, ServerSettings) else read_settings(Path(given))


def application(
    settings: ServerSettings,
    *,
    allow_public: bool = False,
    other_programs: OtherPrograms | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> serve.Application:
    """The same for settings that are checked. `allow_public`, `other_programs` as in `run_server`. `file`:
    the front follows the keys in it. `environment`: what configures OpenTelemetry, in which other variables
    do not count. Raises ConfigError without a model.
    """
    if not settings.models:
        raise ConfigError("There is no model to serve.", hint="Write [models.NAME] with a path.")
    drain = {
        "graceful_shutdown_timeout_s": settings.limits.request_timeout_s,
        "graceful_shutdown_wait_loop_s": 1.0,
    }
    settings = with_threads(settings)
    models = {
        name: serve.deployment(
            ModelReplica,
            name=f"model-{name.replace('#', '-')}",
            max_ongoing_requests=model.sequences + MORE,
            max_queued_requests=settings.limits.max_waiting,
            ray_actor_options=resources(model),
            max_constructor_retry_count=1,
            request_router_config=RequestRouterConfig(
                request_router_class=ROUTER, request_router_kwargs={"sequences": model.sequences}
            ),
            **drain,
            **scaling(model),
        ).bind(only(settings, name), other_programs)
        for name, model in settings.models.items()
    }
    spans = {name: str(it) for name, it in (environment or {}).items() if name.startswith("OTEL_")}
    front = serve.deployment(
        Front,
        name=FRONT,
        max_ongoing_requests=FRONT_REQUESTS,
        ray_actor_options={"num_cpus": 0, **({"runtime_env": {"env_vars": spans}} if spans else {})},
        max_surge_percent=100,  # the new one is there before the old one stops taking requests
        max_constructor_retry_count=1,
        **drain,
    )
    limits = limits_deployment() if settings.keys else None  # the file may give a key limits later
    return front.bind(settings, models, limits, allow_public=allow_public, file=file, environment=spans)


def scaling(model: ModelSettings) -> dict[str, Any]:
    """How many replicas a model has."""
    if model.max_replicas is None or model.max_replicas == model.replicas:
        return {"num_replicas": model.replicas}
    config = AutoscalingConfig(
        min_replicas=model.replicas,
        max_replicas=model.max_replicas,
        target_ongoing_requests=model.sequences,
        upscale_delay_s=BUSY_S,
        downscale_delay_s=IDLE_S,
    )
    return {"autoscaling_config": config}


def with_threads(settings: ServerSettings) -> ServerSettings:
    """The settings with the threads of every model: where one has no number, the cores of this machine are
    shared by all replicas that there may be.
    """
    count = sum(model.max_replicas or model.replicas for model in settings.models.values())
    share = max(1, physical_cores() // count)
    models = {name: replace(it, threads=it.threads or share) for name, it in settings.models.items()}
    return replace(settings, models=models)


def resources(model: ModelSettings) -> dict[str, Any]:
    """What Ray reserves for a replica: its threads, and a GPU where the cluster has one and the model may use
    it.
    """
    gpus = ray.cluster_resources().get("GPU", 0) if ray.is_initialized() else 0
    return {"num_cpus": model.threads, "num_gpus": 1 if gpus and model.gpu_layers else 0}


class ModelReplica:
    """A deployment's replica of a model, whose engine is loaded when it starts."""

    async def __init__(self, settings: ServerSettings, other_programs: OtherPrograms | None) -> None:  # type: ignore[misc]
        log_to(_lines(), "off")  # the front logs requests
        self._replica = Replica(make_pool(settings, other_programs=other_programs))
        self._callers = Callers(is_there)
        try:
            await self._replica.start()
        except ForedraftError as error:
            raise StartError(error) from None

    async def answer(self, asked: Forwarded) -> AsyncGenerator[Parts, None]:
        """As `Replica.answer`; it ends with its front."""
        with self._callers.answering(asked.front) as gone:
            async with aclosing(self._replica.answer(asked, gone)) as reply:
                async for parts in reply:
                    yield parts

    async def read(self, path: str) -> tuple[str, bytes]:
        """The replica's name, and its answer to GET."""
        return serve.get_replica_context().replica_id.unique_id, await self._replica.read(path)

    def check_health(self) -> None:
        """As `Replica.check_health`; Serve replaces a replica that raises."""
        self._replica.check_health()

    async def __del__(self) -> None:
        if hasattr(self, "_replica"):  # it may have failed to start
            await self._replica.close()


def is_there(replica: str) -> bool:
    """Whether the replica with this name runs, as far as Ray knows."""
    try:
        ray.get_actor(replica, namespace=SERVE_NAMESPACE)
    except ValueError:
        return False
    except RayError:  # Ray is away
        return True
    return True


class RayReplicas:
    """The replicas of a model, by the handle of their deployment (`front.Replicas`). `front`: Ray's name of
    the replica that asks them.
    """

    def __init__(self, handle: DeploymentHandle, front: str) -> None:
        self._handle = handle
        self._front = front
        self._streaming = handle.options(stream=True)

    async def ask(self, asked: Forwarded) -> AsyncGenerator[Parts, None]:
        """Raises ReplicaLostError, CapacityError."""
        reply, whole = self._streaming.answer.remote(replace(asked, front=self._front)), False
        try:
            yield await self._accepted(reply)
            async for parts in reply:
                yield parts
            whole = True
        except (BackPressureError, DeploymentUnavailableError) as error:
            raise busy() from error
        except RayTaskError:  # a fault of the replica's program
            raise
        except (RayError, RayServeException) as error:
            raise lost() from error
        finally:
            if not whole:
                reply.cancel()

    async def _accepted(self, reply: DeploymentResponseGenerator) -> Parts:
        """The first part, which says that a replica has the request: it may wait while they are busy. Raises
        CapacityError if none is there for `PATIENCE_S`.
        """
        first = asyncio.ensure_future(anext(reply))
        seen = time.monotonic()
        try:
            while not (await asyncio.wait([first], timeout=LOOK_S))[0]:
                if self._is_known():
                    seen = time.monotonic()
                elif time.monotonic() - seen > PATIENCE_S:
                    raise busy()
            parts: Parts = await first
            return parts
        finally:
            first.cancel()

    def _is_known(self) -> bool:
        """Whether Ray knows a replica, which may be busy."""
        return known_replicas.get(self._handle.deployment_id, 0) > 0

    async def read(self, path: str) -> Mapping[str, bytes]:
        """What each of them answers to GET, by its name."""
        return await read_all(self._handle, path)


async def read_all(handle: DeploymentHandle, *args: object) -> Mapping[str, bytes]:
    """What each replica of a deployment answers to `read`, by its name. One that is stuck hides no other:
    Ray's own way to the results of a broadcast has all of them or none.
    """
    try:
        asked = handle.broadcast("read", *args)
        replies = await asyncio.wait_for(asked._fetch_replica_results_async(), READ_S)
    except (TimeoutError, RayError, RayServeException):
        return {}
    found = await asyncio.gather(*map(_in_time, replies))
    return dict(each for each in found if each is not None)


async def _in_time(reply: ReplicaResult) -> tuple[str, bytes] | None:
    """What a replica answers; None if it does not, or too late."""
    try:
        said: tuple[str, bytes] = await asyncio.wait_for(reply.get_async(), READ_S)
    except TimeoutError:
        reply.cancel()
        return None
    except Exception:  # whatever has happened to it: the others answer
        logger.debug("A replica does not answer.", exc_info=True)
        return None
    return said


def busy() -> CapacityError:
    """The error where no replica takes a request."""
    return CapacityError("All replicas of this model are busy, or none is there yet.", hint="Try again.")


def _lines() -> logging.Handler:
    """Standard error, which Ray shows to who has started the cluster; `sys.stderr` may be Serve's own log."""
    return logging.StreamHandler(sys.__stderr__)


class _Delegate:
    """The application of the front in this process, which its constructor makes: Serve wants an application
    when the class is made.
    """

    applications: ClassVar[list[ASGIApp]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        [application] = self.applications
        if _has_id(scope):
            scope, send = {**scope, "headers": with_plain_id(scope["headers"])}, _without_id(send)
        await application(scope, receive, send)


def _has_id(scope: Scope) -> bool:
    """Whether Serve's proxy has given the request its id, which it then also writes into the answer."""
    return scope["type"] == "http" and any(name == ID.encode() for name, _ in scope["headers"])


def _without_id(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message["headers"] if pair[0] != ID.encode()]
            message = {**message, "headers": headers}
        await send(message)

    return sending


def listening_host(keys: Sequence[KeySettings], *, allow_public: bool) -> str:
    """The address where Serve's proxies listen, as they were started. Raises StartError if other machines
    could use a server without keys there.
    """
    host: str = serve.context._get_global_client().http_config.host or NOWHERE
    try:
        check_listening(host, keys, allow_public=allow_public)
    except ConfigError as error:
        raise StartError(error) from None
    return host


@serve.ingress(_Delegate())
class Front:
    """The deployment that has no engine and answers HTTP."""

    def __init__(
        self,
        settings: ServerSettings,
        models: Mapping[str, DeploymentHandle],
        limits: DeploymentHandle | None,
        *,
        allow_public: bool,
        file: Path | None,
        environment: Mapping[str, str],
    ) -> None:
        log_to(_lines(), settings.log_format)
        here = serve.get_replica_context()
        own = here.replica_id.to_full_id_str()
        replicas = {name: RayReplicas(handle, own) for name, handle in models.items()}
        admit = None if limits is None else ClusterLimiter(Remote(limits)).admit
        following = Following(
            replace(settings, host=listening_host(settings.keys, allow_public=allow_public)), file
        )
        if settings.idle_training:
            logger.warning("idle_training has no effect with Ray: 'foredraft draft make' trains a head.")
        self._name = f"{FRONT}-{here.replica_id.unique_id}"
        fronts = serve.get_deployment_handle(here.deployment, here.app_name)
        self._app = front_app(
            following.start(),
            replicas,
            allow_public=allow_public,
            admit=admit,
            reload=following.poll,
            telemetry=from_environment(environment),
            name=self._name,
            fronts=partial(read_all, fronts),
        )
        _Delegate.applications[:] = [self._app]

    async def read(self) -> tuple[str, bytes]:
        """For another front: this one's name, and what `ClusterMetrics.said`."""
        return self._name, await self._app.state.metrics.said()
