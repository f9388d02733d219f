"""Fixtures that every part of the suite may use."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import ssl
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import hypothesis
import pytest

import matrix
from foredraft.backends.llamacpp import trial
from foredraft.isolation.pool import ChildPool
from foredraft.library import default_model, elsewhere

SLOW_MACHINES = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
"""No test fails because a machine is busy."""
SHARED_PROMPTS = Path(__file__).parents[2] / "shared" / "data" / "prompts"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --nightly`: the whole of what a quick run samples."""
    parser.addoption(
        "--nightly", action="store_true", help="every combination of parameters, more examples, long tests"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C is heard by the tests of it even in a suite started in the background, where shells drop it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        keep_to_one_processor(int(worker.removeprefix("gw")))
    nightly = config.getoption("--nightly")
    hypothesis.settings.register_profile("foredraft", SLOW_MACHINES, max_examples=200 if nightly else 20)
    hypothesis.settings.load_profile("foredraft")


def keep_to_one_processor(number: int) -> None:
    """Processes that compute side by side, each with a thread for every processor, wait for one another."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[number % len(allowed)]})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Products of parameters (`matrix`) are whole in a nightly run only."""
    matrix.parametrize(metafunc, full=metafunc.config.getoption("--nightly"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what is marked `nightly` out of a quick run."""
    if config.getoption("--nightly"):
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    config.hook.pytest_deselected(items=nightly)
    items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def pytest_collection() -> None:
    """Nothing that is imported is garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Full collections of garbage need not look at what importing and collecting have made."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing a test does reaches the user's cache, nor another test's, nor other programs' models."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FOREDRAFT_CACHE", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    for variable in ("OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(elsewhere, "_home", lambda: folder)
    monkeypatch.setattr(elsewhere, "OLLAMA_SERVICE", folder / "ollama")
    return folder


@pytest.fixture(scope="session", autouse=True)
def one_child() -> Iterator[None]:
    """Model files are tried in one child: there are hundreds of small ones."""
    with ChildPool(size=1, memory=trial.MEMORY) as children, pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "start_children", lambda: nullcontext(children))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_tls_context() -> Iterator[None]:
    """httpx reads all certificates for every client, which takes three times as long as a request here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session")
def is_nightly(pytestconfig: pytest.Config) -> bool:
    """Whether there is time for long runs of random operations."""
    return bool(pytestconfig.getoption("--nightly"))


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for measurements of the default model, so that it is probed once a run."""
    return tmp_path_factory.mktemp("measurements")


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's file."""
    path = default_model()
    if path is None:
        pytest.skip("the default model (make test installs it) is not installed")
    return path


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """The loggers of `foredraft serve` as they were, afterwards."""
    names = ("foredraft.requests", "foredraft.server", "uvicorn")
    before = [(it := logging.getLogger(name), it.level, it.propagate, [*it.handlers]) for name in names]
    yield
    for it, level, propagate, handlers in before:
        it.level, it.propagate, it.handlers = level, propagate, handlers
