"""Downloads of models in the background: two at a time, each can be cancelled and continued."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Literal, TypeAlias

from foredraft.errors import ConfigError, ForedraftError, ModelNotFoundError, first_line, quoted
from foredraft.library import PullStoppedError, Stop, pull
from foredraft.server.console.model_schemas import Pull

AT_ONCE = 2
"""Downloads that run at the same time; others wait."""

KEPT = 50
"""Downloads to list; of more the oldest that have ended are forgotten."""

RATE_S = 5.0
"""Seconds over which the rate is measured."""

State: TypeAlias = Literal["running", "done", "failed", "cancelled"]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """What to download and to where. `finished` is called with the model's path on the download's thread and
    returns the name under which it is served, if it is; it may raise ForedraftError.
    """

    repository: str
    quantization: str | None
    folder: Path
    endpoint: str | None
    finished: Callable[[Path], str | None]

    @property
    def model(self) -> str:
        """Its name."""
        return self.repository + (f":{self.quantization}" if self.quantization else "")


@dataclass(slots=True)
class _Job:
    """A download and its state. Its thread and the event loop use it: each change is one assignment."""

    id: str
    order: Order
    state: State = "running"
    file: str | None = None
    done: int = 0
    total: int | None = None
    error: str | None = None
    path: str | None = None
    served_as: str | None = None
    stop: Stop = field(default_factory=Stop)
    reached: deque[tuple[float, int]] = field(default_factory=deque)

    def rate(self) -> float | None:
        """Bytes a second, lately; None before two reports."""
        reached = list(self.reached)
        if self.state != "running" or len(reached) < 2:
            return None
        (since, before), (_, now) = reached[0], reached[-1]
        return (now - before) / max(monotonic() - since, 1e-3)

    def reply(self) -> Pull:
        """What the console says of it."""
        return Pull(
            id=self.id,
            model=self.order.model,
            file=self.file,
            state=self.state,
            done_bytes=self.done,
            total_bytes=self.total,
            bytes_per_s=self.rate(),
            error=self.error,
            path=self.path,
            served_as=self.served_as,
        )


class PullRunningError(ForedraftError):
    """Only a download that has ended can be forgotten."""

    code = "pull_running"
    status = 409


class Puller:
    """The downloads of a server. Used by the event loop; each download has a thread of its own. Those of one
    repository go on one after the other, as they may be of the same files.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._pulling: dict[Stop, str] = {}
        """The repositories of which something is downloaded, by what stops it."""
        self._changed = threading.Condition()

    def start(self, order: Order) -> Pull:
        """Begin a download; one of the same model that has ended makes room. Raises ConfigError if the model
        is being downloaded.
        """
        for other in [job for job in self._jobs.values() if _same(job.order, order)]:
            if other.state == "running":
                raise ConfigError(
                    f"{quoted(order.model)} is being downloaded already.",
                    hint="Wait for it.",
                    setting="model",
                )
            del self._jobs[other.id]
        job = _Job(secrets.token_hex(8), order)
        self._jobs[job.id] = job
        for old in [job.id for job in self._jobs.values() if job.state != "running"][
            : max(0, len(self._jobs) - KEPT)
        ]:
            del self._jobs[old]
        self._run(job)
        return job.reply()

    def resume(self, name: str) -> Pull:
        """Continue a download that was cancelled or failed; one that runs or is done goes on being so. Raises
        ModelNotFoundError.
        """
        job = self._job(name)
        if job.state not in ("running", "done"):
            self._run(job)
        return job.reply()

    def cancel(self, name: str) -> Pull:
        """Stop a download, whose partial file stays; one that has ended stays as it is. Raises
        ModelNotFoundError.
        """
        job = self._job(name)
        if job.state == "running":
            job.state = "cancelled"
            self._stop(job)
        return job.reply()

    def forget(self, name: str) -> Pull:
        """Take a download that has ended off the list. Raises ModelNotFoundError, PullRunningError."""
        job = self._job(name)
        if job.state == "running":
            raise PullRunningError(f"{quoted(job.order.model)} is being downloaded.", hint="Cancel it first.")
        del self._jobs[name]
        return job.reply()

    def all(self) -> list[Pull]:
        """The newest first."""
        return [job.reply() for job in reversed(self._jobs.values())]

    def pulls(self, repository: str) -> bool:
        """Whether a model of this repository is being downloaded."""
        return any(
            job.state == "running" and job.order.repository.casefold() == repository.casefold()
            for job in self._jobs.values()
        )

    def close(self) -> None:
        """Stop all downloads. Their threads do not hold up the end of the process."""
        for job in self._jobs.values():
            self._stop(job)

    def _job(self, name: str) -> _Job:
        if name not in self._jobs:
            raise ModelNotFoundError("There is no such download.", hint="Load the page again.")
        return self._jobs[name]

    def _run(self, job: _Job) -> None:
        job.state, job.error, job.stop = "running", None, Stop()
        job.reached = deque()
        threading.Thread(
            target=self._download, args=(job, job.stop), name="foredraft-pull", daemon=True
        ).start()

    def _stop(self, job: _Job) -> None:
        """Stop a download, which leaves its place to others at once."""
        job.stop.set()
        with self._changed:
            self._changed.notify_all()

    # --- on the download's thread ----------------------------------------------------------------------

    def _download(self, job: _Job, stop: Stop) -> None:
        try:
            with self._place(job.order.repository.casefold(), stop):
                self._pull(job, stop)
        except PullStoppedError:
            return  # `cancel` has said so
        except ForedraftError as error:
            self._ended(job, stop, "failed", str(error))
        except Exception as error:
            logger.exception("Downloading %s failed.", quoted(job.order.model))
            self._ended(job, stop, "failed", f"Unexpected error: {first_line(error)}")

    @contextmanager
    def _place(self, repository: str, stop: Stop) -> Iterator[None]:
        """A place among those that download, once there is one. Raises PullStoppedError."""

        def free() -> bool:
            going = sum(not other.is_set for other in self._pulling)
            return going < AT_ONCE and repository not in self._pulling.values()

        with self._changed:
            self._changed.wait_for(lambda: stop.is_set or free())
            stop.check()
            self._pulling[stop] = repository
        try:
            yield
        finally:
            with self._changed:
                del self._pulling[stop]
                self._changed.notify_all()

    def _pull(self, job: _Job, stop: Stop) -> None:
        order = job.order

        def progress(done: int, total: int, file: str) -> None:
            stop.check()
            job.done, job.total, job.file = done, total, file
            now = monotonic()
            job.reached.append((now, done))
            while now - job.reached[0][0] > RATE_S:
                job.reached.popleft()

        path = pull(
            order.repository,
            order.quantization,
            folder=order.folder,
            progress=progress,
            endpoint=order.endpoint,
            stop=stop,
        )
        stop.check()
        job.path = str(path)
        try:
            job.served_as = order.finished(path)
        except ForedraftError as error:
            job.error = f"It was downloaded, but is not served: {error}"
        self._ended(job, stop, "done", job.error)

    @staticmethod
    def _ended(job: _Job, stop: Stop, state: State, error: str | None) -> None:
        if not stop.is_set:
            job.error, job.state = error, state


def _same(one: Order, other: Order) -> bool:
    return one.model.casefold() == other.model.casefold()
