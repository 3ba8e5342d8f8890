"""One server process: its connections, its partitions, its place in the cluster.

Turns reads into events and effects into writes. All messages of one read reach their partitions at
once; each partition is stepped once for all that waits for it. A client with too much under way is
not read from the network: that is the whole of back pressure. Decides nothing.
Source: Waltz Server, "Waltz Server".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Final

from waltz.access.policy_watch_shell import EVERYBODY_MAY, AccessConfig
from waltz.audit.audit_shell import Audit
from waltz.cluster.cluster_shell import (
    ServerMembership,
    read_cluster_params,
    read_replica_assignments,
    read_store_params,
)
from waltz.cluster.histories import Histories
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.cluster.server_assignment import MembershipRead
from waltz.errors import CoordinationError, ProtocolError, UnavailableError
from waltz.host import Coordinator, Host, Listener
from waltz.limits import (
    CHECKPOINT_TRANSACTIONS,
    CONNECTION_RESTORE_SECONDS,
    CONNECTIVITY_SECONDS_MAX,
    FEED_CACHE_BYTES,
    FEED_FETCH_MIN,
    HANDSHAKE_SECONDS_MAX,
    IDLE_SECONDS_MAX,
    LOCK_TABLE_SLOTS,
    SMALL_BYTES_MAX,
)
from waltz.server.clients.client_connection import answer_without_partition, may_overtake
from waltz.server.clients.clients_shell import Clients, ConnectedClient
from waltz.server.clients.consumer_lags import ConsumerMarks, ConsumersState
from waltz.server.clients.directory_shell import Directory
from waltz.server.clients.identification import rule_of
from waltz.server.clients.mark_keeping_shell import MarkKeeper
from waltz.server.clients.mounted_clients import (
    AppliedByClients,
)
from waltz.server.clients.reception import Terms
from waltz.server.commit_ages import Lag
from waltz.server.coordinator_watch_shell import CoordinatorWatch, CountedCoordinator
from waltz.server.enforcement_shell import Enforcement
from waltz.server.feeding.feed_cache import FeedCache
from waltz.server.feeding.outbox import Part
from waltz.server.held_partition import HeldPartition
from waltz.server.holding_shell import Holding
from waltz.server.operator_answers_shell import OPERATORS_QUESTIONS, OperatorAnswers
from waltz.server.running_partitions_shell import RunningPartitions
from waltz.server.server_metrics import (
    ServerStage,
    ServerState,
)
from waltz.server.server_partition_events import (
    ConnectionDrained,
    ConnectionLost,
)
from waltz.store.events import StoreEvent
from waltz.store.store_partition_shell import StorageConnections, StorePartition
from waltz.types import (
    NOTHING,
    Address,
    Generation,
    PartitionId,
    ReplicaId,
    TransactionId,
)
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    AddPreferredPartitionRequest,
    AddPreferredPartitionResponse,
    CheckStorageConnectivityRequest,
    CheckStorageConnectivityResponse,
    ClientMessage,
    RemovePreferredPartitionRequest,
    RemovePreferredPartitionResponse,
    ServerPartitionsAssignmentRequest,
    ServerPartitionsAssignmentResponse,
    ServerPartitionsHealthRequest,
    ServerPartitionsHealthResponse,
)
from waltz.wire.clients_protocol import AppliedMarks
from waltz.wire.cut_protocol import HoldReleaseRequest, HoldRequest
from waltz.wire.discovery_protocol import (
    ClientIdRequest,
    GrowthReport,
    GrowthRequest,
    TopologyRequest,
)
from waltz.wire.history_protocol import HistoriesAnswer, HistoriesRequest, MarksAnswer, MarksRequest
from waltz.wire.message import Message
from waltz.wire.storage_protocol import STORAGE_CODEC

SERVER_QUESTIONS_MAX: Final = 16
"""Questions of one connection to the server as a whole, not answered yet."""


READERS_QUESTIONS: Final = (HistoriesRequest, MarksRequest)
"""Questions about the log of those who read it."""


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """`advertised` is where clients reach the server, if not at `address` (SV-02)."""

    address: Address
    advertised: Address | None = None
    preferred_partitions: tuple[PartitionId, ...] = ()
    feed_cache_bytes: int = FEED_CACHE_BYTES
    feed_fetch_min: int = FEED_FETCH_MIN
    lock_table_slots: int = LOCK_TABLE_SLOTS
    checkpoint_transactions: int = CHECKPOINT_TRANSACTIONS
    root: str = DEFAULT_ROOT
    restore_seconds: float = CONNECTION_RESTORE_SECONDS
    """The time for which a broken connection can be restored; 0: not at all."""
    idle_seconds: float = IDLE_SECONDS_MAX
    """The time for which a client may be silent, from version 5 of the protocol on; 0: for ever."""
    handshake_seconds: float = HANDSHAKE_SECONDS_MAX
    """Until a connection's peer must have said who it is."""
    access: AccessConfig = EVERYBODY_MAY
    """The rights of peers, and what is written down of their use."""
    protocol_version_max: int = CLIENT_CODEC.versions[-1]
    """The latest version of the client protocol that is offered to clients."""
    storage_protocol_version_max: int = STORAGE_CODEC.versions[-1]
    """The latest version of the storage protocol that is offered to storage nodes."""
    coordinator_location: str | None = None
    """The coordinator's address, without secrets, for tools that know nothing but a server."""
    watches_coordinator: bool = True
    """Whether the coordinator is asked now and then if it is there, for `/health` and metrics."""
    ends_with_partition: bool = False
    """Whether a partition that fails ends the server, so that tests see every bug."""


class Server:
    """A server of the cluster, from `start` to `stop`."""

    def __init__(self, host: Host, config: ServerConfig) -> None:
        calls = CountedCoordinator(host.coordinator)
        self.host = host = replace(host, coordinator=calls)
        self._config = config
        self._cache = FeedCache(config.feed_cache_bytes)
        self._clients = Clients(
            host,
            CLIENT_CODEC.up_to(config.protocol_version_max),
            idle_seconds=config.idle_seconds,
            restore_seconds=config.restore_seconds,
            handshake_seconds=config.handshake_seconds,
            identification=rule_of(config.access),
            hand_on=self._hand_on,
            tell_all=self._tell_of_connection,
            policy=lambda: self._enforcement.policy,
        )
        self._applied = AppliedByClients()
        self._mark_keeper = MarkKeeper(host, config.root)
        self._consumer_marks = ConsumerMarks()
        self._backlog_bytes_peak = 0
        self._errands: dict[asyncio.Task[None], None] = {}
        self._partitions = partitions = RunningPartitions(
            host,
            self._clients,
            self._cache,
            self._make,
            self._start,
            self._end if config.ends_with_partition else None,
        )
        mounted, withdraw = partitions.mounted, partitions.withdraw
        audit = Audit(host, config.access.audit, f"server {config.advertised or config.address}")
        self._enforcement = Enforcement(
            host, config.access, self._clients, mounted, withdraw, audit, config.root
        )
        self._holding = Holding(partitions.running, lambda: partitions.assigned)
        self._coordinator = CoordinatorWatch(host, config.root, calls)
        self._operator_answers = OperatorAnswers(
            host.clock,
            self._clients,
            self._applied,
            partitions,
            self._coordinator,
            watches_coordinator=config.watches_coordinator,
            coordinator_location=config.coordinator_location,
        )
        self._directory = Directory(host, config.root, self._clients.send, self._clients.full)
        self._listener: Listener | None = None
        self._membership: ServerMembership | None = None
        self._histories: Histories
        self._ended: asyncio.Future[None] | None = None
        self._is_stopping = False

    @property
    def address(self) -> Address:
        """Return the address at which the server listens; for port 0 with the real port."""
        assert self._listener is not None, "started"
        return self._listener.address

    async def start(self) -> None:
        """Listen, then join the cluster under an address that already answers.

        Raises ConfigurationError: the port is in use, the cluster contradicts itself, or the policy
        has a fault.
        NoNodeError: there is no cluster. CoordinatorLostError.
        """
        self._ended = asyncio.get_running_loop().create_future()
        params = await read_store_params(self.host.coordinator, self._config.root)
        cluster = await read_cluster_params(self.host.coordinator, self._config.root)
        self._storages = StorageConnections(
            self.host, params, STORAGE_CODEC.up_to(self._config.storage_protocol_version_max)
        )
        await self._enforcement.start()
        self._directory.start(cluster, params)
        try:
            self._listener = await self.host.network.listen(
                self._config.address, self._clients.accept
            )
        except BaseException:
            await self._enforcement.stop()
            await self._directory.stop()
            raise
        self._membership = ServerMembership(
            self.host,
            self._config.advertised or self.address,
            self._partitions.assign,
            preferred_partitions=self._config.preferred_partitions,
            root=self._config.root,
            on_membership=self._note_membership,
        )
        try:
            await self._membership.start()
        except BaseException:
            await self._enforcement.stop()
            await self._directory.stop()
            await self._listener.close()
            raise
        assert self._membership.server_id is not None, "started"
        self._histories = Histories.kept(params.cluster_key, self._membership.histories)
        if self._config.watches_coordinator:
            self._coordinator.start()
        self._clients.begin(
            Terms(
                params.cluster_key,
                self._membership.server_id,
                str(self._config.advertised or self.address),
                self._config.idle_seconds,
                self._config.restore_seconds,
                history=self._histories.current if self._histories.restores else None,
            )
        )
        logger.info(
            "server_started server_id=%s address=%s", self._membership.server_id, self.address
        )

    def state(self) -> ServerState:
        """Return the server's state at this moment."""
        membership = self._membership
        clients = self._clients
        is_serving = membership is not None and membership.server_id is not None
        return ServerState(
            stage=ServerStage.STOPPING
            if self._is_stopping
            else ServerStage.SERVING
            if is_serving
            else ServerStage.STARTING,
            server_id=None if membership is None else membership.server_id,
            advertised=str(self._config.advertised or self._config.address),
            is_registered=membership is None or membership.is_registered,
            preferred_partitions=() if membership is None else membership.preferred_partitions,
            connections=len(clients),
            broken_connections=clients.broken_count,
            retained_bytes=sum(client.link.retained.byte_count for client in clients),
            full_connections=len(clients.full),
            throttled_connections=clients.throttled_count,
            throttles=clients.throttles,
            unidentified=clients.identifier.refusals,
            backlog_bytes=sum(client.intake.byte_count for client in clients),
            backlog_bytes_peak=self._backlog_bytes_peak,
            unsent_bytes=sum(client.unsent_bytes for client in clients),
            unsent_bytes_peak=clients.unsent_bytes_peak,
            cache_bytes=self._cache.byte_count,
            cache_hits=self._cache.hits,
            cache_misses=self._cache.misses,
            coordinator=self._coordinator.contact() if self._config.watches_coordinator else None,
            policy=self._enforcement.standing(),
            throttled=clients.throttle.throttled(),
            audit=self._enforcement.audit_standing(),
            partitions=self._partitions.states(),
        )

    def consumers(self) -> ConsumersState:
        """Return how far the consumers of this server's partitions are behind at this moment."""
        now = self.host.clock.now()

        def lag_of(
            partition_id: PartitionId, mark: TransactionId
        ) -> tuple[TransactionId | None, Lag | None] | None:
            partition = self._partitions.running.get(partition_id)
            if partition is None:
                return None
            return partition.machine.high_water_mark, partition.machine.lag_of(mark, now)

        return self._consumer_marks.state(lag_of, now)

    async def run(self) -> None:
        """Return once the server was stopped. Raises what ended it otherwise."""
        assert self._ended is not None, "started"
        await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """Take nothing more, wait for what is undecided, release the partitions, leave. Idempotent.

        The next server of each partition finds it at rest (SV-31).
        """
        if self._is_stopping or self._listener is None or self._membership is None:
            return
        self._is_stopping = True
        self._clients.refuse()
        self._partitions.refuse()
        for errand in self._errands:
            errand.cancel()
        await self._listener.close()
        await self._partitions.release()
        await self._membership.stop()
        await self._coordinator.stop()
        await self._enforcement.stop()
        await self._directory.stop()
        self._clients.stop()
        await self._mark_keeper.stop()
        await self._storages.close()
        self._end(None)
        logger.info("server_stopped server_id=%s", self._membership.server_id)

    # Connections

    def _tell_of_connection(self, event: ConnectionDrained | ConnectionLost) -> None:
        if isinstance(event, ConnectionLost):
            self._directory.forget(event.connection_id)
            self._applied.forget(event.connection_id)
            self._mark_keeper.leave(event.connection_id)
            self._consumer_marks.leave(event.connection_id, self.host.clock.now())
        self._partitions.tell_all(event)

    async def _hand_on(self, client: ConnectedClient, messages: Sequence[Message]) -> None:
        """Give `messages` to those they are for; return when there is room for more."""
        if not messages or self._is_stopping:
            client.note_intake()  # a part of a frame may have come
            return
        if (allowed := self._enforcement.allowed(client, messages)) is None:
            return
        for_partitions, for_server = client.sorter.sort(allowed)
        for partition_id, event, byte_count in for_partitions:
            partition = self._partitions.running.get(partition_id)
            if partition is not None:
                # If nothing of this client waits there, its questions go before what others want.
                overtakes = may_overtake(event) and not client.intake.waits_for(partition.opening)
                if overtakes and (at_hand := partition.machine.answers_at_hand(event)):
                    self._clients.send(client.connection_id, at_hand)
                    client.flush()
                    continue
                client.intake.take(partition.opening, byte_count)
                if overtakes:
                    partition.take_now(event)
                    client.flush()
                elif client.intake.byte_count <= SMALL_BYTES_MAX and self._clients.lane.is_used:
                    partition.take_at_once(event)
                else:
                    partition.put(event)
                continue
            answers = [answer_without_partition(message) for message in event.messages]
            if parts := [answer for answer in answers if answer is not None]:
                self._clients.send(client.connection_id, parts)
        for message in for_server:
            if type(message) is AppliedMarks:
                self._note_applied(client, message)
                continue
            # Beside the connection, whose partitions need not wait for storage nodes and others.
            while client.questions >= SERVER_QUESTIONS_MAX:
                await asyncio.wait(self._errands, return_when=asyncio.FIRST_COMPLETED)
            client.questions += 1
            self._start(self._answer_later(client, message))
        client.note_intake()
        self._backlog_bytes_peak = max(self._backlog_bytes_peak, client.intake.byte_count)
        if not client.intake.may_read:
            await client.may_read.wait()
        if client.draining is not None and client.connection is not None:
            await client.connection.drain()

    async def _answer_later(self, client: ConnectedClient, message: Message) -> None:
        try:
            self._clients.send(client.connection_id, [await self._answer(client, message)])
        finally:
            client.questions -= 1

    async def _answer(self, client: ConnectedClient, message: Message) -> Part:
        """Answer what is asked of the server as a whole."""
        if isinstance(message, TopologyRequest):
            if message.subscribe and self._clients.find(client.connection_id) is not None:
                self._directory.subscribe(client.connection_id)
            return self._directory.told()
        if isinstance(message, ClientIdRequest):
            return await self._directory.give_client_id(message)
        if isinstance(message, READERS_QUESTIONS):
            return _tell_reader(message, self._histories, self._partitions)
        if isinstance(message, GrowthRequest):
            earlier = _earlier_count(self._clients, self._partitions)
            return GrowthReport(message.request_number, self.partition_count, earlier)
        if isinstance(message, HoldRequest):
            return await self._holding.hold(client.connection_id, message)
        if isinstance(message, HoldReleaseRequest):
            return await self._holding.release(client.connection_id, message)
        if isinstance(message, OPERATORS_QUESTIONS):
            return await self._operator_answers.answer(message)
        assert isinstance(message, ClientMessage)
        request_id = message.request_id
        match message:
            case CheckStorageConnectivityRequest():
                found = await _connectivity(
                    self.host.coordinator, self._config.root, self._storages
                )
                return CheckStorageConnectivityResponse(request_id, found)
            case ServerPartitionsAssignmentRequest():
                return ServerPartitionsAssignmentResponse(
                    request_id, tuple(sorted(self._partitions.assigned))
                )
            case ServerPartitionsHealthRequest():
                # A boolean cannot say "unknown"; reports can.
                health = [
                    (p.partition_id, p.is_open and p.is_writable is not False)
                    for p in self.state().partitions
                ]
                return ServerPartitionsHealthResponse(request_id, tuple(health))
            case AddPreferredPartitionRequest(_, partition_ids):
                result = await self._prefer(add=partition_ids)
                return AddPreferredPartitionResponse(request_id, result)
            case RemovePreferredPartitionRequest(_, partition_ids):
                result = await self._prefer(remove=partition_ids)
                return RemovePreferredPartitionResponse(request_id, result)
            case _:
                raise AssertionError(f"{type(message).__name__} is for a partition")

    def _note_applied(self, client: ConnectedClient, message: AppliedMarks) -> None:
        """Keep the marks of partitions that this connection has mounted here."""
        now, client_id = self.host.clock.now(), client.sorter.client_id
        for mark in message.marks:
            partition = self._partitions.running.get(mark.partition_id)
            if partition is None or client_id is None:
                continue
            machine, label = partition.machine, client.label
            if not machine.mounts.speaks(client.connection_id, client_id):
                continue
            self._applied.note(client.connection_id, mark, now)
            if label is None or not label.is_consumer or machine.high_water_mark is None:
                continue
            if NOTHING <= mark.transaction_id <= machine.high_water_mark:
                number, last = mark.partition_id, mark.transaction_id
                self._mark_keeper.note(client.connection_id, label.name, number, last)
                self._consumer_marks.note(client.connection_id, label.name, number, last)

    @property
    def partition_count(self) -> int:
        """The cluster's, as far as this server knows."""
        assert self._membership is not None
        return self._membership.partition_count

    def _note_membership(self, membership: MembershipRead) -> None:
        self._directory.change(membership)
        self._storages.grow(self.partition_count)

    async def _prefer(
        self, *, add: Sequence[PartitionId] = (), remove: Sequence[PartitionId] = ()
    ) -> bool:
        assert self._membership is not None
        try:
            return await self._membership.prefer(add=add, remove=remove)
        except (UnavailableError, CoordinationError, ProtocolError) as error:
            logger.warning(
                "preferred_partitions_unchanged add=%s remove=%s error=%s", add, remove, error
            )
            return False

    def _make(
        self, partition_id: PartitionId, generation: Generation
    ) -> tuple[HeldPartition, Callable[[Callable[[StoreEvent], None]], StorePartition]]:
        """Return the machine of a partition, and what opens its store."""

        def open_store(on_event: Callable[[StoreEvent], None]) -> StorePartition:
            return StorePartition(
                self.host,
                partition_id,
                generation,
                self._storages,
                on_event=on_event,
                lane=self._clients.lane,
                root=self._config.root,
                checkpoint_transactions=self._config.checkpoint_transactions,
            )

        machine = HeldPartition(
            partition_id,
            generation,
            self._cache,
            self._clients.full,
            feed_fetch_min=self._config.feed_fetch_min,
            lock_table_slots=self._config.lock_table_slots,
        )
        return machine, open_store

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._errands[task] = None
        task.add_done_callback(self._errands.pop)

    def _end(self, error: BaseException | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


def _tell_reader(
    request: HistoriesRequest | MarksRequest,
    histories: Histories,
    partitions: RunningPartitions,
) -> Part:
    """Return the histories of the log, or the marks that the partitions here know now."""
    if isinstance(request, HistoriesRequest):
        return HistoriesAnswer(request.request_number, histories.to_tell())
    known = [
        (partition_id, mark)
        for partition_id, partition in partitions.running.items()
        if (mark := partition.machine.high_water_mark) is not None
    ]
    partition_ids, marks = zip(*known, strict=True) if known else ((), ())
    return MarksAnswer(request.request_number, partition_ids, marks)


def _earlier_count(clients: Clients, partitions: RunningPartitions) -> int:
    """Return the number of clients that have mounted a partition and know no features."""
    mounted = {
        connection_id
        for partition in partitions.running.values()
        for connection_id in partition.machine.mounts.connection_ids()
    }
    found = [clients.find(connection_id) for connection_id in mounted]
    return sum(client is not None and not client.link.has_lifecycle for client in found)


async def _connectivity(
    coordinator: Coordinator, root: str, storages: StorageConnections
) -> tuple[tuple[str, bool], ...]:
    """Return whether each storage node answers this server in time."""
    try:
        replicas = sorted(await read_replica_assignments(coordinator, root))
    except (UnavailableError, CoordinationError, ProtocolError) as error:
        logger.warning("replicas_unknown error=%s", error)
        return storages.connectivity()
    waits = [_is_connected(storages, replica_id) for replica_id in replicas]
    return tuple(zip(replicas, await asyncio.gather(*waits), strict=True))


async def _is_connected(storages: StorageConnections, replica_id: ReplicaId) -> bool:
    try:
        async with asyncio.timeout(CONNECTIVITY_SECONDS_MAX):
            return await storages.to(replica_id).answers()
    except TimeoutError:
        return False
