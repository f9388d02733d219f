"""`foredraft serve --ray`: starts or joins a cluster, runs the application, and takes it away again."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from foredraft.config import OtherPrograms
from foredraft.errors import BackendError, CapacityError, ConfigError, first_line, quoted
from foredraft.scale.listening import check_listening
from foredraft.scale.ray import APP, application, resources, with_threads
from foredraft.scale.start_error import error_in
from foredraft.server.run import check_free
from foredraft.server.settings import ServerSettings

LOOK_S = 0.5
"""Seconds between looks at an application that starts or ends."""

MOST_MISSED = 60
"""Looks at an application that is not there, while it should be starting, after which it is lost."""

WATCH_S = 5.0
"""Seconds between looks at one that runs."""

OBJECTS_BYTES = 100 * 2**20
"""Memory for Ray's object store in a cluster of our own: what we send is small."""

QUIET = {"log_level": "WARNING", "enable_access_log": False}
"""Serve's own log beside the front's."""

NOT_JOINED = (
    "Is RAY_ADDRESS the address of a cluster that runs? If it asks for a token, set RAY_AUTH_MODE=token, "
    "and on another machine RAY_AUTH_TOKEN_PATH to a copy of its file."
)

ENDED = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)


def serve_on_ray(
    settings: ServerSettings,
    *,
    address: str | None,
    allow_public: bool,
    other_programs: OtherPrograms,
    file: Path,
    environment: Mapping[str, str],
    progress: Callable[[str], None],
    listening: Callable[[str], None],
) -> None:
    """Serve until KeyboardInterrupt; then running requests are finished, and a second one ends them. `file`,
    `environment` as in `application`.

    `address`: of a cluster to join, as in RAY_ADDRESS; None starts one that ends with this. `progress` is
    told what is being waited for, `listening` the URL without a path.

    Raises what a replica raised when it started, CapacityError where the port or processors are in use, and
    BackendError if the cluster ends.
    """
    progress("Starting Ray…" if address is None else "Joining the Ray cluster…")
    with _cluster(address):
        host, port = _listen(settings, own=address is None)
        check_listening(host, settings.keys, allow_public=allow_public)
        if address is None:
            _check_room(settings)
        _check_alone()
        made = application(
            settings,
            allow_public=allow_public,
            other_programs=other_programs,
            file=file,
            environment=environment,
        )
        serve.run_many(
            [serve.RunTarget(made, name=APP, logging_config=QUIET)], wait_for_applications_running=False
        )
        began = None
        try:
            began = _wait_until_running(progress)
            listening(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            _watch()
        finally:
            progress("Finishing the running requests…")
            _take_away(began)


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    options: dict[str, Any] = (
        {"address": address}
        if address
        else {"address": "local", "include_dashboard": False, "object_store_memory": OBJECTS_BYTES}
    )
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        ray.init(logging_level=logging.ERROR, **options)
    except (ConnectionError, RayError, ValueError, RuntimeError) as error:
        raise BackendError(
            f"Ray: {first_line(error)}",
            hint=NOT_JOINED if address else None,
        ) from error
    if main:
        signal.signal(signal.SIGTERM, before)  # Ray has set its own
    try:
        yield
    finally:
        ray.shutdown()


def _listen(settings: ServerSettings, *, own: bool) -> tuple[str, int]:
    """Let Serve listen where the settings say, and return where it does: one that runs already stays where it
    is. Raises CapacityError.
    """
    host, port = settings.host, settings.port
    if own:
        check_free(host, port)
        port = port or _free_port(host)
    serve.start(http_options={"host": host, "port": port}, logging_config=QUIET)
    http = serve.context._get_global_client().http_config
    return http.host, http.port


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _check_room(settings: ServerSettings) -> None:
    """Raises CapacityError if this machine has fewer processors than the replicas have threads."""
    models = with_threads(settings).models.values()
    wanted = sum(resources(model)["num_cpus"] * model.replicas for model in models)
    there = int(ray.cluster_resources().get("CPU", 0))
    if wanted > there:
        raise CapacityError(
            f"The replicas have {wanted} threads together, and Ray has {there} processors here.",
            hint="Use fewer --replicas or --threads, or join a cluster with RAY_ADDRESS.",
        )


def _wait_until_running(progress: Callable[[str], None]) -> float:
    """When the application was deployed, once all its replicas are there. Raises why they are not."""
    missed = 0
    while True:
        found = _overview()
        missed = missed + 1 if found is None else 0
        if missed > MOST_MISSED:
            raise _ended()
        if found is not None and found.status == ApplicationStatus.RUNNING:
            deployed: float = found.last_deployed_time_s
            return deployed
        if found is not None and found.status in ENDED:
            raise _why(found)
        if found is not None:
            up = sum(it.replica_states.get("RUNNING", 0) for it in found.deployments.values())
            progress(f"Loading… ({up} replicas are ready)")
        time.sleep(LOOK_S)


def _why(found: ApplicationStatusOverview) -> Exception:
    said = [found.message, *(it.message for it in found.deployments.values())]
    known = next((error for text in said if (error := error_in(text)) is not None), None)
    return known or BackendError(
        f"Ray Serve could not start the application: {' '.join(filter(None, said))[-2000:]}",
        hint="Ray's logs are in /tmp/ray/session_latest/logs/serve.",
    )


def _watch() -> None:
    """Until interrupted. Raises BackendError if the application or the cluster ends."""
    while _overview() is not None:
        time.sleep(WATCH_S)
    raise _ended()


def _ended() -> BackendError:
    return BackendError("The application was taken off the Ray cluster, or the cluster has ended.")


def _check_alone() -> None:
    """Raises ConfigError if another application of this Serve answers at our path."""
    there = serve.status().applications
    for name in there:
        if (
            name != APP
            and serve.context._get_global_client()
            .get_serve_details()["applications"]
            .get(name, {})
            .get("route_prefix")
            == "/"
        ):
            raise other_at_root(name)


def other_at_root(name: str) -> ConfigError:
    """The error for a Serve whose root is taken."""
    return ConfigError(
        f"Serve's application {quoted(name)} on this Ray cluster already answers at /.",
        hint=f"Take it away with serve.delete({name!r}), give it another route_prefix, or use another "
        "cluster: without RAY_ADDRESS this command starts one of its own.",
    )


def _overview() -> ApplicationStatusOverview | None:
    try:
        return serve.status().applications.get(APP)
    except (RayError, RuntimeError, serve.exceptions.RayServeException):
        return None


def _take_away(began: float | None) -> None:
    """Let the application finish its requests and end, unless another was deployed since `began`."""
    found = _overview()
    if found is None or (began is not None and found.last_deployed_time_s != began):
        return
    with suppress(RayError, RuntimeError):
        serve.delete(APP, _blocking=False)
    while _overview() is not None:
        time.sleep(LOOK_S)
