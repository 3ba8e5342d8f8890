"""The plan of a migration: what to do in which order, whether a step is ready, and the way back.

Owns the order and the rule of readiness: no process is replaced while a partition lacks one of its
replicas. Pure: it is made from what was found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from waltz.cli.cluster_list import ClusterMetadata
from waltz.cli.doctor.finding import Checked
from waltz.cli.migration.cluster_checks import (
    RESUMING_VERSION,
    Peers,
    is_original_storage,
    missing_replicas,
    stops_appends,
)
from waltz.cli.partition_list import listed_partitions
from waltz.types import PartitionId, ReplicaId

UNREAD: Final = "the cluster's metadata was not read"
NOT_ASKED: Final = "it is not known whether all replicas are there: no process was asked"


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `is_ready` None: it could not be found out, `why` says what is missing; `is_done`:
    the process is one of this program already."""

    role: str
    title: str
    is_ready: bool | None
    why: tuple[str, ...]
    do: tuple[str, ...]
    back: tuple[str, ...]
    is_done: bool = False

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def lines(self, number: int) -> Iterator[str]:
        state = {True: "ready", False: "NOT READY", None: "unknown"}[self.is_ready]
        yield f"{number}. {self.title}: {'done' if self.is_done else state}"
        yield from (f"     because {each}" for each in self.why)
        yield from (f"     do:   {each}" for each in self.do)
        yield from (f"     back: {each}" for each in self.back)


LOOK_AGAIN: Final = "run waltz migrate check again, where it can read the metadata"
STORAGE_BACK: Final = (
    "stop the node, start the original on the same directory and address",
    "records, control file and indexes are in the original's own format",
    "the original ignores waltz-storage.node, .trace and .reserve, *.jnl and damaged.json",
    "the original ignores the flag by which reads and writes are closed apart",
)
SERVER_BACK: Final = (
    "start the original's server, then stop this one: partitions go back by the same assignment",
)

ONE_WAY: Final = (
    "a policy with deny: a server of the original asks no policy",
    "zookeeper.acl: creator: the original's processes then read nothing of the cluster",
    "ssl.trustStore with another CA than the original's trust store has",
    "waltz cluster add-partitions while processes of the original run: they keep the old number",
    "waltz restore: the original knows nothing of the histories that a restore begins",
)
"""Features that the original does not know: each closes the way back until it is undone."""


def plan(
    metadata: ClusterMetadata | None, peers: Peers | None, findings: Sequence[Checked]
) -> tuple[Step, ...]:
    """Return the steps in order. `metadata` None: the cluster is not known."""
    faults = tuple(
        f"{each.check} {each.subject}: {each.cause}" for each in findings if each.is_well is False
    )
    missing = (
        {}
        if metadata is None
        else missing_replicas(metadata, None if peers is None else peers.facts)
    )
    steps = [_prepare(faults), _observe(metadata)]
    if metadata is None:
        steps += [
            Step(
                role,
                f"Replace the {role}s one by one",
                None,
                (UNREAD,),
                (LOOK_AGAIN,),
                (LOOK_AGAIN,),
            )
            for role in ("storage node", "server")
        ]
    else:
        steps += [_storage(node, metadata, peers, missing) for node in metadata.replicas()]
        steps += _servers(metadata, peers, missing)
    return (*steps, _clients(), _features())


def _prepare(faults: tuple[str, ...]) -> Step:
    return Step(
        "all",
        "Prepare: back up, convert files and key stores",
        not faults,
        faults,
        (
            "keep the original's configuration files and key stores, and a backup of ZooKeeper",
            "keep a copy of a majority of the storage directories, each made with its node stopped",
            "waltz migrate convert-tls and convert-config for each file",
            "waltz server --check and waltz storage --check on each new file; waltz doctor",
        ),
        ("nothing was changed",),
    )


def _observe(metadata: ClusterMetadata | None) -> Step:
    return Step(
        "tools",
        "Let the new tools look at the running original",
        True if metadata is not None else None,
        () if metadata is not None else (UNREAD,),
        ("waltz cluster verify, waltz status, waltz tail: for some days, next to the old tools",),
        ("nothing was changed",),
    )


def _wholeness(
    peers: Peers | None, missing: Mapping[PartitionId, Sequence[ReplicaId]]
) -> tuple[bool | None, list[str]]:
    why = [
        f"partition {number} lacks {', '.join(nodes)}" for number, nodes in sorted(missing.items())
    ]
    if why:
        return False, why
    return (None, [NOT_ASKED]) if peers is None else (True, [])


def _storage(
    node: ReplicaId,
    metadata: ClusterMetadata,
    peers: Peers | None,
    missing: Mapping[PartitionId, Sequence[ReplicaId]],
) -> Step:
    is_ready, why = _wholeness(peers, missing)
    if stopped := stops_appends(metadata, node):
        is_ready = False
        why.append(f"partitions {listed_partitions(stopped)} take no appends while it is away")
    report = None if peers is None else peers.facts.storages.get(node)
    is_done = report is not None and is_original_storage(report) is False
    return Step(
        "storage",
        f"Replace storage node {node}",
        is_ready,
        tuple(why),
        (
            "stop the original's storage node; wait until its process is gone",
            f"waltz storage FILE, on the same directory, as {node}",
            "wait until waltz migrate check says that the next step is ready",
        ),
        STORAGE_BACK,
        is_done,
    )


def _servers(
    metadata: ClusterMetadata,
    peers: Peers | None,
    missing: Mapping[PartitionId, Sequence[ReplicaId]],
) -> Iterator[Step]:
    descriptors = metadata.membership.descriptors
    for server_id, descriptor in sorted(descriptors.items()):
        is_ready, why = _wholeness(peers, missing)
        version = None if peers is None else peers.versions.get(descriptor.address)
        if peers is not None and version is None:
            is_ready = False
            why.append(f"server {descriptor.address} does not answer")
        yield Step(
            "server",
            f"Replace server {descriptor.address} ({server_id})",
            is_ready,
            tuple(why),
            (
                "start waltz server FILE on another port or machine first, if it is the only one",
                "waltz admin server add-preferred-partition moves partitions to it one by one",
                "stop the original's server: its clients go to the other servers by themselves",
            ),
            SERVER_BACK,
            version is not None and version >= RESUMING_VERSION,
        )


def _clients() -> Step:
    return Step(
        "client",
        "Clients, when they like",
        True,
        (),
        (
            "clients of the original stay as they are: servers speak their versions 0 to 4",
            "an application that changes to Python keeps its marks: the log is the same",
        ),
        ("start the old application: it goes on from its own mark",),
    )


def _features() -> Step:
    return Step(
        "all",
        "Features that close the way back: only when nothing has to go back",
        True,
        (),
        ONE_WAY,
        ("undo the feature first, then go back as above",),
    )
