"""The processes' use of the coordinator: create and read a cluster, join it, follow it.

`server_assignment.py` decides; here its decisions meet a coordinator that may be lost at any call.
Its loss changes nothing that is being served: safety rests on store sessions alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from waltz.cluster.locking_shell import admin_lock
from waltz.cluster.log_history import LogHistory
from waltz.cluster.log_history_shell import expect_histories, read_log_histories, refuse_retired
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.cluster.replica_assignments import (
    ConnectionMetadata,
    GroupDescriptor,
    ReplicaAssignments,
)
from waltz.cluster.server_assignment import (
    NO_ASSIGNMENT,
    MembershipRead,
    PartitionAssignment,
    ServerDescriptor,
    proposed_assignment,
    routes,
)
from waltz.cluster.store_params import ClusterParams, StoreParams, decode_counter, encode_counter
from waltz.cluster.tree import parent_of
from waltz.errors import (
    ConfigurationError,
    CoordinationError,
    ForeignDirectoryError,
    NodeExistsError,
    NoNodeError,
    ProtocolError,
    RemoteProtocolError,
    UnavailableError,
    VersionConflictError,
)
from waltz.host import Coordinator, Host, Node
from waltz.limits import COORDINATOR_RETRY_SECONDS_MAX, COORDINATOR_RETRY_SECONDS_MIN
from waltz.types import (
    NO_SESSION,
    Address,
    ClientId,
    Generation,
    PartitionId,
    ReplicaId,
    ServerId,
    SessionId,
)

logger = logging.getLogger(__name__)

# Creating


@dataclass(frozen=True, slots=True)
class StorageEntry:
    """The addresses on which a storage node listens; both have the same host."""

    connect: Address
    admin: Address


async def create_cluster(
    coordinator: Coordinator,
    *,
    name: str,
    partition_count: int,
    cluster_key: UUID,
    storages: Sequence[StorageEntry],
    root: str = DEFAULT_ROOT,
) -> None:
    """Create a cluster whose storage nodes, each a group of its own, hold all partitions.

    The store parameters are written last: with them the cluster exists. A creation that was cut
    short earlier may be repeated with the same name and number of partitions. Raises
    NodeExistsError: there is a cluster; ConfigurationError: an admin address on another host;
    VersionConflictError: another process is creating a cluster there.
    """
    paths = ClusterPaths(root)
    replica_ids = [ReplicaId(str(entry.connect)) for entry in storages]
    for entry in storages:
        if entry.admin.host != entry.connect.host:
            raise ConfigurationError(
                f"storage node {entry.connect} has its admin port at {entry.admin}; expected the"
                " same host"
            )
    await claim_root(coordinator, paths, ClusterParams(name, partition_count))
    for path, data in (
        (paths.server_descriptors, NO_ASSIGNMENT.encode()),
        (paths.ids, None),
        (paths.client_id_counter, encode_counter(0)),
        (paths.server_id_counter, encode_counter(0)),
        (paths.store, None),
        (paths.partitions, None),
        (paths.group_descriptor, None),
        (paths.replica_assignments, None),
        (paths.connection_metadata, None),
    ):
        await create_if_absent(coordinator, path, data)
    all_partitions = tuple(map(PartitionId, range(partition_count)))
    ports = {replica_id: e.admin.port for replica_id, e in zip(replica_ids, storages, strict=True)}
    groups = {replica_id: index + 1 for index, replica_id in enumerate(replica_ids)}
    written: dict[str, int] = {}
    for path, data in (
        (paths.group_descriptor, GroupDescriptor(groups).encode()),
        (
            paths.replica_assignments,
            ReplicaAssignments(dict.fromkeys(replica_ids, all_partitions)).encode(),
        ),
        (paths.connection_metadata, ConnectionMetadata(ports).encode()),
        (paths.store, StoreParams(cluster_key, partition_count).encode()),
    ):
        async with admin_lock(coordinator, root=root):
            store = await coordinator.read(paths.store)
            if store.data is not None:
                raise NodeExistsError(f"there is a cluster at {root}")
            if path == paths.store:
                for other, version in written.items():
                    if (await coordinator.read(other)).version != version:
                        raise VersionConflictError(
                            f"another process is creating this cluster: it has written node {other}"
                        )
            version = (await coordinator.read(path)).version
            written[path] = await coordinator.write(path, data, version=version)


async def claim_root(coordinator: Coordinator, paths: ClusterPaths, params: ClusterParams) -> None:
    """Write the parameters, unless an interrupted creation has left the same ones. Raises
    NodeExistsError: there is a cluster, or a restore was begun."""
    ancestors = [paths.root]
    while (ancestor := parent_of(ancestors[-1])) != "/":
        ancestors.append(ancestor)
    for path in reversed(ancestors):
        await create_if_absent(coordinator, path, None)
    node = await coordinator.read(paths.root)
    if node.data is None:
        await coordinator.write(paths.root, params.encode(), version=node.version)
        return
    found = ClusterParams.decode(node.data)
    complete = False
    with contextlib.suppress(NoNodeError):
        complete = (await coordinator.read(paths.store)).data is not None
    if complete or found != params:
        raise NodeExistsError(
            f"there is a cluster at {paths.root}: {found.name!r} of {found.partition_count}"
            " partitions"
        )
    with contextlib.suppress(NoNodeError):
        await coordinator.read(paths.restore)
        raise NodeExistsError(
            f"a restore was begun at {paths.root}: resume it with waltz restore cluster, or remove"
            f" its nodes with waltz cluster delete --name {found.name}"
        )


async def create_if_absent(coordinator: Coordinator, path: str, data: bytes | None) -> None:
    """Create the node, unless there is one."""
    with contextlib.suppress(NodeExistsError):
        await coordinator.create(path, data)


# Reading


async def read_cluster_params(coordinator: Coordinator, root: str = DEFAULT_ROOT) -> ClusterParams:
    """Return the cluster parameters. Raises NoNodeError: there is no cluster."""
    return ClusterParams.decode(await _read_data(coordinator, root, root))


async def read_store_params(coordinator: Coordinator, root: str = DEFAULT_ROOT) -> StoreParams:
    """Return the store parameters. Raises NoNodeError: there is no cluster, or its creation was cut
    short."""
    return StoreParams.decode(await _read_data(coordinator, ClusterPaths(root).store, root))


async def read_replica_assignments(
    coordinator: Coordinator, root: str = DEFAULT_ROOT
) -> Mapping[ReplicaId, tuple[PartitionId, ...]]:
    """Return the partitions of each storage node. Raises NoNodeError: there is no cluster."""
    path = ClusterPaths(root).replica_assignments
    return ReplicaAssignments.decode(await _read_data(coordinator, path, root)).partitions


async def read_connection_metadata(
    coordinator: Coordinator, root: str = DEFAULT_ROOT
) -> Mapping[ReplicaId, int]:
    """Return the admin port of each storage node. Raises NoNodeError: there is no cluster."""
    path = ClusterPaths(root).connection_metadata
    return ConnectionMetadata.decode(await _read_data(coordinator, path, root)).admin_ports


async def read_partition_metadata(
    coordinator: Coordinator, partition_id: PartitionId, root: str = DEFAULT_ROOT
) -> PartitionMetadata:
    """Return the partition's metadata. Raises NoNodeError: it never had a store session."""
    node = await coordinator.read(ClusterPaths(root).partition_metadata(partition_id))
    return PartitionMetadata.decode(node.data or b"", partition_id)


async def _read_data(coordinator: Coordinator, path: str, root: str) -> bytes:
    return (await _read_value(coordinator, path, root))[0]


async def _read_value(coordinator: Coordinator, path: str, root: str) -> tuple[bytes, int]:
    """Return the data and the version of a node to which every cluster gives a value."""
    with contextlib.suppress(NoNodeError):
        node = await coordinator.read(path)
        if node.data is not None:
            return node.data, node.version
    raise NoNodeError(f"there is no cluster at {root}: node {path} has no value; create one first")


async def allocate_client_id(coordinator: Coordinator, root: str = DEFAULT_ROOT) -> ClientId:
    """Return an ID that no other client of the cluster has ever had; the first is 1.

    Source: Client-Server Communication, "Request ID".
    """
    return ClientId(await _allocate(coordinator, ClusterPaths(root).client_id_counter, root))


async def allocate_server_id(coordinator: Coordinator, root: str = DEFAULT_ROOT) -> ServerId:
    """Return an ID that no other server of the cluster has ever had; the first is 1."""
    return ServerId(await _allocate(coordinator, ClusterPaths(root).server_id_counter, root))


async def _allocate(coordinator: Coordinator, path: str, root: str) -> int:
    while True:
        data, version = await _read_value(coordinator, path, root)
        identifier = decode_counter(data) + 1
        try:
            await coordinator.write(path, encode_counter(identifier), version=version)
        except VersionConflictError:
            continue  # another process took the ID: every conflict means that one has succeeded
        return identifier


# Storage directories


async def latest_session(
    coordinator: Coordinator, partition_id: PartitionId, *, root: str = DEFAULT_ROOT
) -> SessionId:
    """Return the partition's highest session given to a server; `NO_SESSION` before the first.
    Raises CoordinationError, UnavailableError, ProtocolError."""
    try:
        return (await read_partition_metadata(coordinator, partition_id, root)).session_id
    except NoNodeError:
        return NO_SESSION


async def register_storage_directory(
    coordinator: Coordinator,
    replica_id: ReplicaId,
    directory_id: UUID,
    *,
    root: str = DEFAULT_ROOT,
) -> None:
    """Note that the storage node `replica_id` works in the directory with `directory_id`.

    An earlier directory of the node is replaced: the node has a blank disk, or one restored from
    elsewhere. Its partitions have missed sessions then, so they do not vote. Raises
    ForeignDirectoryError: another node works in this directory or a copy of it, or the directory is
    of the time before the log was restored; NoNodeError: there is no cluster;
    CoordinatorLostError.
    """
    paths = ClusterPaths(root)
    data = str(directory_id).encode()
    await refuse_retired(coordinator, paths, directory_id)
    # Two nodes that start on two copies of a directory must notice each other.
    async with admin_lock(coordinator, root=root):
        await create_if_absent(coordinator, paths.storage_directories, None)
        for name in await coordinator.children(paths.storage_directories):
            other = ReplicaId(name)
            node = await coordinator.read(paths.storage_directory(other))
            if node.data == data and other != replica_id:
                raise ForeignDirectoryError(
                    f"storage directory {directory_id} is that of storage node {other}, not of"
                    f" {replica_id}: it was moved or copied. Start the node as {other}; or, if"
                    f" the directory was copied, give {replica_id} an empty directory; or, if"
                    f" {other} is gone for good, waltz cluster remove-storage -s {other}, or, if"
                    " the cluster does not know it, delete the coordinator's node"
                    f" {paths.storage_directory(other)}"
                )
        path = paths.storage_directory(replica_id)
        try:
            await coordinator.create(path, data)
        except NodeExistsError:
            node = await coordinator.read(path)
            if node.data == data:
                return
            await coordinator.write(path, data, version=node.version)
            logger.warning(
                "storage_directory_replaced replica=%s was=%s now=%s",
                replica_id, (node.data or b"").decode("ascii", "replace"), directory_id,
            )  # fmt: skip
        else:
            logger.info("storage_directory_new replica=%s id=%s", replica_id, directory_id)


# Following


async def read_membership(coordinator: Coordinator, path: str) -> tuple[Node, MembershipRead]:
    """Read the parent at `path`, then its children: if a child is newer, the parent changes again.

    Raises NoNodeError: there is no cluster; RemoteProtocolError; CoordinatorLostError.
    """
    while True:
        parent = await coordinator.read(path)
        assignment = PartitionAssignment.decode(parent.data or b"")
        names = await coordinator.children(path)
        with contextlib.suppress(NoNodeError):
            # A node that has gone in the meantime may have been replaced by one that is not listed:
            # without both, a server that only changes its preferences would lose its partitions.
            nodes = await asyncio.gather(*(coordinator.read(f"{path}/{name}") for name in names))
            break
    descriptors: dict[ServerId, ServerDescriptor] = {}
    for name, node in zip(names, nodes, strict=True):
        try:
            descriptor = ServerDescriptor.decode(node.data or b"")
        except RemoteProtocolError as error:
            logger.warning("bad_server_descriptor node=%s error=%s", name, error)
            continue
        descriptors[descriptor.server_id] = descriptor
    return parent, MembershipRead(parent.version, parent.child_version, assignment, descriptors)


async def _follow(host: Host, path: str, look: Callable[[], Awaitable[Node]]) -> None:
    """Call `look` at once and after every change of the node at `path`, for ever."""
    pause, logged = COORDINATOR_RETRY_SECONDS_MIN, ""
    while True:
        try:
            seen = await look()
            pause, logged = COORDINATOR_RETRY_SECONDS_MIN, ""
            await host.coordinator.changed(path, seen)
        except (UnavailableError, CoordinationError, ProtocolError, ConfigurationError) as error:
            if str(error) != logged:  # once per trouble, which may last for days
                logged = str(error)
                logger.warning("coordinator_trouble path=%s error=%s", path, error)
            await asyncio.sleep(host.random.uniform(pause / 2, pause))
            pause = min(2 * pause, COORDINATOR_RETRY_SECONDS_MAX)


async def _cancel(task: asyncio.Task[None] | None) -> None:
    """Cancel the task. Raises its error, if it ended by itself."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class ServerMembership:
    """A server's place in the cluster.

    Keeps the server registered with the same ID, even when coordinator sessions are lost. Calls
    `on_assignment` with the server's partitions whenever they have changed and the assignment fits
    the present membership, but not while the coordinator is away. Computes the assignment for all
    servers while this server's ID is the smallest. Source: Waltz Server, "Cluster Manager".
    """

    def __init__(
        self,
        host: Host,
        address: Address,
        on_assignment: Callable[[dict[PartitionId, Generation]], None],
        *,
        preferred_partitions: Sequence[PartitionId] = (),
        root: str = DEFAULT_ROOT,
        on_membership: Callable[[MembershipRead], None] | None = None,
    ) -> None:
        """`address` is the one for clients. `on_membership` is called with each membership read."""
        self._host = host
        self._on_membership = on_membership
        self._address = address
        self._on_assignment = on_assignment
        self._preferred_partitions = tuple(preferred_partitions)
        self._paths = ClusterPaths(root)
        self._descriptor: ServerDescriptor | None = None
        self.histories: tuple[LogHistory, ...] = ()
        """The histories of the log that began with a restore, as of the start."""
        self.partition_count = 0
        """The partitions of the cluster, as far as is known; only grows. It comes from the cluster
        parameters when this server registers, then from assignments, which bring added
        partitions."""
        self.is_registered = False
        """Whether the server was among the registered ones at the last look."""
        self._assigned: dict[PartitionId, Generation] = {}
        self._task: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        """Held while the preferences or the server's own nodes are changed."""
        self._node: str | None = None
        """The node with which this server registered last."""

    @property
    def preferred_partitions(self) -> tuple[PartitionId, ...]:
        return self._preferred_partitions

    @property
    def server_id(self) -> ServerId | None:
        """This server's ID; None before `start`."""
        return None if self._descriptor is None else self._descriptor.server_id

    async def start(self) -> None:
        """Take a server ID, then begin to register and to follow.

        Raises NoNodeError: there is no cluster; ConfigurationError: its parameters contradict each
        other; CoordinatorLostError.
        """
        coordinator, root = self._host.coordinator, self._paths.root
        params = await read_cluster_params(coordinator, root)
        store_params = await read_store_params(coordinator, root)
        if params.partition_count > store_params.partition_count:
            raise ConfigurationError(
                f"cluster {params.name!r} has {params.partition_count} partitions, its store"
                f" {store_params.partition_count}"
            )
        if params.partition_count < store_params.partition_count:
            logger.warning(
                "partitions_half_added partitions=%d wanted=%d: finish it with waltz cluster"
                " add-partitions --to %d",
                params.partition_count, store_params.partition_count, store_params.partition_count,
            )  # fmt: skip
        self.partition_count = params.partition_count
        self.histories = await read_log_histories(coordinator, self._paths)
        server_id = await allocate_server_id(coordinator, root)
        with contextlib.suppress(NoNodeError):
            node = await coordinator.read(self._paths.server_preference(self._address))
            kept = ServerDescriptor.decode(node.data or b"").preferred_partitions
            self._preferred_partitions = tuple(p for p in kept if p < self.partition_count)
        self._descriptor = ServerDescriptor(server_id, self._address, self._preferred_partitions)
        self._task = asyncio.create_task(
            _follow(self._host, self._paths.server_descriptors, self._look)
        )

    async def prefer(
        self, *, add: Sequence[PartitionId] = (), remove: Sequence[PartitionId] = ()
    ) -> bool:
        """Change which partitions this server prefers, now and after a restart.

        False: the cluster has no such partition, and nothing was changed. Concurrent changes are
        made one after the other, and each gets an answer of its own. The server stays registered,
        so that only preferred partitions move.
        Raises UnavailableError, CoordinationError: the change may or may not have been made; repeat
        it to be sure.
        """
        if not all(0 <= p < self.partition_count for p in (*add, *remove)):
            return False
        async with self._changing:
            wanted = dict.fromkeys((*self._preferred_partitions, *add))
            chosen = tuple(p for p in wanted if p not in remove)
            if chosen != self._preferred_partitions:
                own = self._own
                descriptor = ServerDescriptor(own.server_id, own.address, chosen)
                await self._keep_preference(descriptor)
                self._preferred_partitions = chosen
                self._descriptor = descriptor
                logger.info("preferred_partitions server_id=%d now=%s", own.server_id, chosen)
            await self._register()
        return True

    async def _keep_preference(self, descriptor: ServerDescriptor) -> None:
        coordinator = self._host.coordinator
        path = self._paths.server_preference(descriptor.address)
        await create_if_absent(coordinator, self._paths.server_preferences, None)
        try:
            await coordinator.create(path, descriptor.encode())
        except NodeExistsError:
            node = await coordinator.read(path)
            await coordinator.write(path, descriptor.encode(), version=node.version)

    async def _register(self) -> None:
        """Make a node that describes this server, then delete its other nodes. Raises
        ConfigurationError: the log was restored since this server started."""
        coordinator, path = self._host.coordinator, self._paths.server_descriptors
        own = self._own
        outdated: list[str] = []
        is_registered = False
        for name in await coordinator.children(path):
            with contextlib.suppress(NoNodeError, RemoteProtocolError):
                node = await coordinator.read(f"{path}/{name}")
                found = ServerDescriptor.decode(node.data or b"")
                if found == own:
                    is_registered = True
                elif found.server_id == own.server_id:
                    outdated.append(name)
        if not is_registered:
            await expect_histories(coordinator, self._paths, self.histories)
            self._node = await coordinator.create(
                self._paths.server_node_prefix, own.encode(), ephemeral=True, sequential=True
            )
            logger.info("server_registered server_id=%d address=%s", own.server_id, own.address)
            # Partitions added while no server was registered are dealt out by the next one.
            params = await read_cluster_params(coordinator, self._paths.root)
            self.partition_count = max(self.partition_count, params.partition_count)
        for name in outdated:
            with contextlib.suppress(NoNodeError):
                await coordinator.delete(f"{path}/{name}")

    async def stop(self) -> None:
        """Leave the cluster: the coordinating server gives the partitions to others. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        await _cancel(task)
        coordinator, path = self._host.coordinator, self._paths.server_descriptors

        async def leave(name: str) -> None:
            with contextlib.suppress(NoNodeError, RemoteProtocolError):
                node = await coordinator.read(f"{path}/{name}")
                if ServerDescriptor.decode(node.data or b"").server_id == self._own.server_id:
                    await coordinator.delete(f"{path}/{name}")

        with contextlib.suppress(UnavailableError, CoordinationError):
            # Delete it at once: until the others see that, the partitions have no server.
            if self._node is not None:
                with contextlib.suppress(NoNodeError):
                    await coordinator.delete(self._node)
            await asyncio.gather(*map(leave, await coordinator.children(path)))

    @property
    def _own(self) -> ServerDescriptor:
        assert self._descriptor is not None, "started"
        return self._descriptor

    async def _look(self) -> Node:
        own, coordinator = self._own, self._host.coordinator
        path = self._paths.server_descriptors
        parent, membership = await read_membership(coordinator, path)
        self.partition_count = max(self.partition_count, membership.assignment.partition_count)
        self.is_registered = membership.descriptors.get(own.server_id) == own
        if not self.is_registered:
            # Found by content, not by name: a create whose answer was lost may have worked, and a
            # change of preferences may have been cut short.
            async with self._changing:
                await self._register()
            return parent
        if self._on_membership is not None:
            self._on_membership(membership)
        proposed = proposed_assignment(membership, own.server_id, self.partition_count)
        if proposed is not None:
            with contextlib.suppress(VersionConflictError):
                await coordinator.write(path, proposed.encode(), version=membership.version)
                self._follow(proposed)
        elif membership.is_consistent:
            self._follow(membership.assignment)
        return parent

    def _follow(self, assignment: PartitionAssignment) -> None:
        assigned = dict(assignment.servers.get(self._own.server_id, {}))
        if assigned != self._assigned:
            self._assigned = assigned
            self._on_assignment(dict(assigned))


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """A cluster as clients and tools see it; `partitions` lacks those without a server."""

    name: str
    cluster_key: UUID
    partition_count: int
    partitions: Mapping[PartitionId, tuple[Address, Generation]]


class ClusterView:
    """Follows which server serves which partition. Calls `on_view` with every new snapshot.

    While the coordinator is away, or an assignment does not fit the membership yet, the last
    snapshot still holds.
    """

    def __init__(
        self,
        host: Host,
        on_view: Callable[[ClusterSnapshot], None] | None = None,
        *,
        root: str = DEFAULT_ROOT,
    ) -> None:
        self._host = host
        self._on_view = on_view
        self._paths = ClusterPaths(root)
        self._current: ClusterSnapshot | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def current(self) -> ClusterSnapshot:
        """The newest snapshot; there is one once `start` has returned."""
        assert self._current is not None, "started"
        return self._current

    async def start(self) -> None:
        """Take a first snapshot, report it, and begin to follow.

        Raises NoNodeError: there is no cluster; CoordinatorLostError.
        """
        coordinator, root = self._host.coordinator, self._paths.root
        params = await read_cluster_params(coordinator, root)
        store_params = await read_store_params(coordinator, root)
        self._tell(
            ClusterSnapshot(params.name, store_params.cluster_key, params.partition_count, {})
        )
        await self._look()
        self._task = asyncio.create_task(
            _follow(self._host, self._paths.server_descriptors, self._look)
        )

    async def stop(self) -> None:
        """Stop following. Idempotent."""
        task, self._task = self._task, None
        await _cancel(task)

    async def _look(self) -> Node:
        parent, membership = await read_membership(
            self._host.coordinator, self._paths.server_descriptors
        )
        partitions = routes(membership)
        if partitions is not None:
            count = max(self.current.partition_count, membership.assignment.partition_count)
            seen = replace(self.current, partition_count=count, partitions=partitions)
            if seen != self.current:
                self._tell(seen)
        return parent

    def _tell(self, snapshot: ClusterSnapshot) -> None:
        self._current = snapshot
        if self._on_view is not None:
            self._on_view(snapshot)
