"""Ray Serve's seam for choosing a replica: `routing.RoutingTable`, told what Ray knows of the replicas.

`ray.serve.request_router` is an alpha API; this is written for Ray 2.60. Importing this raises
MissingDependencyError if it is not there or another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import ray

from foredraft.errors import MissingDependencyError
from foredraft.installation import add_extra
from foredraft.scale.message import Forwarded
from foredraft.scale.routing import MOST_KNOWN, RoutingTable

_USED = (
    "choose_replicas",
    "initialize_state",
    "on_replica_actor_died",
    "on_request_completed",
    "on_request_routed",
    "replica_queue_len_cache",
    "update_replicas",
)


def _other_ray() -> MissingDependencyError:
    return MissingDependencyError(
        f"Ray {ray.__version__} has no request routers as Ray 2.60 has them: they are an alpha API.",
        hint=f"Install the version that was tested: {add_extra('ray')}",
    )


try:
    from ray.serve._private.common import DeploymentID
    from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
except ImportError as error:
    raise _other_ray() from error
if missing := [name for name in _USED if not hasattr(RequestRouter, name)]:
    raise _other_ray() from AttributeError(", ".join(missing))

known_replicas: dict[DeploymentID, int] = {}
"""How many replicas of each deployment Ray has told this process of."""


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray is not there where types are checked
    """Sends a `Forwarded` request to the replica that was last sent the longest beginning of it; anything
    else goes to the least busy replica.

    Lives in each process that has a handle of the deployment, on one event loop; each has a table of its own.
    """

    def initialize_state(self, *, sequences: int, most: int = MOST_KNOWN) -> None:
        """Called by Ray, with the deployment's `request_router_kwargs`."""
        self._table = RoutingTable(sequences=sequences, most=most)
        self._routed: dict[str, str] = {}
        """The replica of each request that is running, by Ray's id of the request."""
        self._running: Counter[str] = Counter()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replica that the table chooses, then all others: Ray takes the least busy one of the first of
        these lists in which one has room.
        """
        if not candidate_replicas:
            return []
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # else Ray asks again without a pause
        named = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        loads = {name: self._load(replica.replica_id) for name, replica in named.items()}
        chosen = self._table.choose(_beginnings(pending_request), loads)
        return [[named[chosen]], [replica for name, replica in named.items() if name != chosen]]

    def _load(self, replica: ReplicaID) -> int:
        """Requests on a replica: as many as it said itself a moment ago, and no fewer than came from here.
        Ray forgets what it said after some seconds.
        """
        return max(self.replica_queue_len_cache.get(replica) or 0, self._running[replica.unique_id])

    def on_request_routed(
        self,
        pending_request: PendingRequest,
        replica_id: ReplicaID,
        result: object,  # noqa: ARG002
    ) -> None:
        """Called by Ray when a replica has accepted the request."""
        name = replica_id.unique_id
        self._table.sent(_beginnings(pending_request), name)
        self._routed[pending_request.metadata.internal_request_id] = name
        self._running[name] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called by Ray for every request that a replica was sent, also if it did not accept it."""
        name = replica_id.unique_id
        if self._routed.get(internal_request_id) == name:
            del self._routed[internal_request_id]
            if self._running[name]:  # it may be gone
                self._running[name] -= 1

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Ray with all replicas when one has come or gone."""
        super().update_replicas(replicas)
        self._forget()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Called by Ray when a request to this replica found it dead."""
        super().on_replica_actor_died(replica_id)
        self._forget()

    def _forget(self) -> None:
        """Forget replicas that are gone."""
        names = {replica.unique_id for replica in self.curr_replicas}
        known_replicas[self._deployment_id] = len(names)
        self._table.keep(names)
        self._running = Counter({name: count for name, count in self._running.items() if name in names})


def _beginnings(pending: PendingRequest | None) -> Sequence[int]:
    if pending is None:
        return ()
    given = [*pending.args, *pending.kwargs.values()]
    return next((one.beginnings for one in given if isinstance(one, Forwarded)), ())
