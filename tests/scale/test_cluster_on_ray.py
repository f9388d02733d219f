"""Limits of keys over several fronts, with Ray between them, and with the process that counts killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

import ray_serve

# isort: split
from foredraft.errors import RateLimitError
from foredraft.scale import cluster
from foredraft.scale.cluster import ClusterLimiter, Limits, Remote, limits_deployment
from foredraft.server.auth import Caller

WHO = Caller("alice", "team", requests_per_minute=600, max_concurrent=2)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with ray_serve.cluster(tmp_path_factory.mktemp("ray")):
        yield


async def admitted(front: ClusterLimiter) -> bool:
    try:
        await front.admit(WHO)
    except RateLimitError:
        return False
    return True


def test_limits_hold_over_ray_and_each_front_counts_while_the_process_is_away(
    serving: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Process(Limits):  # in here: Ray then sends its code along
        async def pid(self) -> int:
            return os.getpid()

    monkeypatch.setattr(cluster, "Limits", Process)
    monkeypatch.setattr(cluster, "AWAY_S", 1.0)
    handle = ray_serve.serve.run(limits_deployment(), name="limits", route_prefix=None)

    async def run() -> None:
        first, second = ClusterLimiter(Remote(handle)), ClusterLimiter(Remote(handle))
        one = await first.admit(WHO)
        await second.admit(WHO)
        assert not await admitted(first)
        one.release()
        held = await first.admit(WHO)
        assert not await admitted(second)

        os.kill(await handle.pid.remote(), signal.SIGKILL)
        assert await admitted(first)
        held.release()
        for _ in range(60):  # a new process counts: it knows nothing of what ran before
            await asyncio.sleep(1.0)
            fronts = [ClusterLimiter(Remote(handle)), ClusterLimiter(Remote(handle))]
            if [await admitted(one) for one in (*fronts, *fronts)].count(True) == 2:
                return
        raise AssertionError("the process that counts did not come back")

    asyncio.run(run())
