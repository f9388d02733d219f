"""Ray Serve for tests that need it; they are skipped where it is missing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns of its own use of pydantic
    serve = pytest.importorskip("ray.serve")
    import ray


@contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """A small cluster of its own, which is gone afterwards. `folder`: for its files; a short path, since it
    has sockets in it.
    """
    options = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 100 << 20}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(address="local", num_cpus=2, _temp_dir=str(folder), **options)
        try:
            yield
        finally:
            serve.shutdown()
            ray.shutdown()
