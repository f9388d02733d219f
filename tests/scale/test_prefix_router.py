"""Ray Serve's request router, with replicas that are not there: `make nightly` has real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import ray_serve  # noqa: F401  # first: it skips where there is no Ray

# isort: split
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve._private.request_router.common import PendingRequest

from foredraft.scale.message import Forwarded
from foredraft.scale.prefix_router import PrefixRouter, known_replicas
from foredraft.server.auth import Caller

SLACK = 4
"""Of a replica with 16 sequences."""

DEPLOYMENT = DeploymentID("model", "foredraft")


class Replica:
    """What a router uses of one. `queue`: requests that it says it has."""

    max_ongoing_requests = 16

    def __init__(self, name: str, queue: int = 0) -> None:
        self.replica_id = ReplicaID(name, DEPLOYMENT)
        self.queue = queue

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return self.queue


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture
def router(loop: asyncio.AbstractEventLoop) -> PrefixRouter:
    made = PrefixRouter(DEPLOYMENT, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True)
    made.initialize_state(sequences=16)
    made._lazily_fetched_loop = loop
    return made


def pending(name: str, *beginnings: int) -> PendingRequest:
    """A request that Ray calls `name`."""
    forwarded = Forwarded("POST", "/v1/completions", b"", (), b"", Caller("ann", ""), beginnings)
    metadata = RequestMetadata(request_id=name, internal_request_id=name)
    return PendingRequest(args=[forwarded], kwargs={}, metadata=metadata, future=SimpleNamespace())


def given(router: PrefixRouter, loop: asyncio.AbstractEventLoop, *replicas: Replica) -> None:
    """Ray says which replicas there are, and asks each how busy it is."""

    async def update() -> None:
        router.update_replicas(list(replicas))
        await asyncio.sleep(0.05)

    loop.run_until_complete(update())


def chosen(router: PrefixRouter, loop: asyncio.AbstractEventLoop, request: PendingRequest) -> str:
    replicas = list(router.curr_replicas.values())
    ranks = loop.run_until_complete(router.choose_replicas(replicas, request))
    assert sorted(one.replica_id.unique_id for rank in ranks for one in rank) == sorted(
        one.replica_id.unique_id for one in replicas
    )
    (first,) = ranks[0]
    name: str = first.replica_id.unique_id
    return name


def test_a_request_follows_what_was_sent_before(router: PrefixRouter, loop: Any) -> None:
    given(router, loop, Replica("a"), Replica("b"), Replica("c"))
    router.on_request_routed(pending("1", 10, 11), ReplicaID("b", DEPLOYMENT), None)
    router.on_request_completed(ReplicaID("b", DEPLOYMENT), "1")
    second = pending("2", 10, 11, 12)
    assert chosen(router, loop, second) == "b"
    assert second.routing_context.should_backoff


def test_a_busy_replica_is_passed_over_whoever_keeps_it_busy(router: PrefixRouter, loop: Any) -> None:
    busy = Replica("b", SLACK)
    given(router, loop, Replica("a"), busy)
    router.on_request_routed(pending("1", 10), busy.replica_id, None)
    router.on_request_completed(busy.replica_id, "1")
    assert chosen(router, loop, pending("2", 10)) == "b"
    router.on_new_queue_len_info(busy.replica_id, SLACK + 1)
    assert chosen(router, loop, pending("3", 10)) == "a"


def test_running_requests_count_when_ray_has_forgotten_what_a_replica_said(
    router: PrefixRouter, loop: Any
) -> None:
    long = Replica("b")
    given(router, loop, Replica("a"), long)
    for number in range(SLACK + 1):
        router.on_request_routed(pending(str(number), 10), long.replica_id, None)
    router.replica_queue_len_cache.invalidate_key(long.replica_id)
    assert chosen(router, loop, pending("more", 10)) == "a"
    router.on_request_completed(ReplicaID("a", DEPLOYMENT), "0")  # "a" had not accepted it
    assert chosen(router, loop, pending("more", 10)) == "a"
    router.on_request_completed(long.replica_id, "0")
    assert chosen(router, loop, pending("more", 10)) == "b"


def test_a_replica_that_is_gone_is_forgotten(router: PrefixRouter, loop: Any) -> None:
    first, second = Replica("a"), Replica("b")
    given(router, loop, first, second)
    router.on_request_routed(pending("1", 10), first.replica_id, None)
    assert known_replicas[DEPLOYMENT] == 2
    router.on_replica_actor_died(first.replica_id)
    assert known_replicas[DEPLOYMENT] == 1
    assert chosen(router, loop, pending("2", 10)) == "b"
    router.on_request_completed(first.replica_id, "1")
    given(router, loop, second, Replica("c"))
    assert len(router._table) == 0
    assert not any(router._running.values())


def test_without_replicas_nothing_is_chosen(router: PrefixRouter, loop: Any) -> None:
    assert loop.run_until_complete(router.choose_replicas([], pending("1"))) == []
