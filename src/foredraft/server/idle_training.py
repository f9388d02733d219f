"""Training a head for the server's model while there are no requests: the setting `idle_training`.

It is the command `foredraft draft make` in a child process of the lowest priority, which is ended when a
request comes and started again after a pause; it goes on from where it was. It reads the model's file, and
writes to the cache folder: its work, and the head if `auto` is faster with it. Requests are not read.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Protocol

from foredraft.registry import missing_dependency
from foredraft.server.settings import ModelSettings

AFTER_S = 300.0
"""Seconds without a request after which it begins, or goes on."""

MINUTES = 60
"""Of training altogether, with what is done for it."""

ENDING_S = 10.0
"""Seconds that the child has to end when the server does."""

_LOWEST_PRIORITY = 19

logger = logging.getLogger(__name__)


class Child(Protocol):
    """A child process, as `subprocess.Popen` is one."""

    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class IdleTraining:
    """Runs a command while the server is idle. `spawn` starts it, `clock` gives seconds."""

    def __init__(
        self,
        spawn: Callable[[], Child],
        *,
        clock: Callable[[], float] = monotonic,
        after_s: float = AFTER_S,
    ) -> None:
        self._spawn = spawn
        self._clock = clock
        self._after_s = after_s
        self._last = clock()
        self._child: Child | None = None
        self._interrupted = False
        self.finished = False

    def request(self) -> None:
        """A request came: end the child, which saves what it did."""
        self._last = self._clock()
        if self._child is not None and not self._interrupted:
            self._interrupted = True
            with suppress(OSError):
                self._child.terminate()

    def check(self, *, busy: bool) -> None:
        """Called now and then: start or judge the child. `busy`: requests are being answered."""
        if busy:
            self.request()
        if self._child is not None:
            self._judge(self._child)
        elif not self.finished and self._clock() - self._last >= self._after_s:
            self._start()

    def _start(self) -> None:
        self._interrupted = False
        try:
            self._child = self._spawn()
        except OSError as error:
            self.finished = True
            logger.warning("A head cannot be trained: %s", error)
            return
        logger.info("Idle: a head for the model is trained until the next request.")

    def _judge(self, child: Child) -> None:
        code = child.poll()
        if code is None:
            return
        self._child = None
        if self._interrupted:
            return
        self.finished = True
        if code == 0:
            logger.info("Training a head has ended; 'foredraft draft list' shows what is installed.")
        else:
            logger.warning(
                "Training a head failed (exit code %d); 'foredraft draft make' says why.",
                code,
            )

    def close(self) -> None:
        """End the child."""
        child, self._child, self.finished = self._child, None, True
        if child is None:
            return
        with suppress(OSError):
            child.terminate()
        try:
            child.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def check_packages() -> None:
    """Raises MissingDependencyError where a package is missing that training needs; imports none."""
    for package in ("torch", "gguf"):
        if find_spec(package) is None:
            raise missing_dependency(package, "idle_training, which trains a head,", extra="draft")


def make_command(path: Path, model: ModelSettings, llama_library: str | Path | None) -> list[str]:
    """The command that trains a head for a model, which loads it as the server does, but for the length of
    the context.
    """
    command = [sys.executable, "-m", "foredraft", "draft", "make", str(path), "--minutes", str(MINUTES)]
    options: dict[str, object] = {
        "--threads": model.threads,
        "--gpu-layers": model.gpu_layers,
        "--mem": model.memory,
        "--batch": model.batch,
        "--ubatch": model.ubatch,
        "--kv-type": model.kv_type,
    }
    if model.rpc:
        options["--rpc"] = ",".join(model.rpc)
    if llama_library is not None:
        options["--llama-library"] = llama_library
    return [*command, *(f"{name}={value}" for name, value in options.items())]


def spawner(command: Sequence[str], environment: Mapping[str, str]) -> Callable[[], Child]:
    """Starts a command at the lowest priority, without output."""

    def spawn() -> Child:
        child = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
        )
        if hasattr(os, "setpriority"):
            with suppress(OSError):  # it has ended already
                os.setpriority(os.PRIO_PROCESS, child.pid, _LOWEST_PRIORITY)
        return child

    return spawn
