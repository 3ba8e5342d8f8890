"""Asks servers for their state, and tells them which partitions to prefer.

Each question has a connection of its own, next to those that a client keeps: a slow server holds up
nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar
from uuid import UUID

from waltz.cluster.cluster_shell import read_membership, read_store_params
from waltz.cluster.paths import ClusterPaths, root_at
from waltz.connections.connection_shell import ServerConnection
from waltz.connections.denial_errors import denial_error
from waltz.connections.logical_handshake import Agreement
from waltz.errors import (
    ConfigurationError,
    ConnectionLostError,
    HandshakeRefusedError,
    OperationTimeoutError,
    ProtocolError,
    RemoteProtocolError,
    UnavailableError,
)
from waltz.host import Coordinator, Host
from waltz.limits import CONNECTIVITY_SECONDS_MAX, HANDSHAKE_SECONDS_MAX, REPORTS_MAX
from waltz.operators.conversation_shell import Conversation, conversation
from waltz.types import (
    NO_CLIENT,
    Address,
    CoordinatorAddress,
    Generation,
    PartitionId,
    RequestId,
    ServersAddress,
    TransactionId,
    parse_coordinator,
)
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    CLIENT_GREETING,
    AddPreferredPartitionRequest,
    AddPreferredPartitionResponse,
    CheckStorageConnectivityRequest,
    CheckStorageConnectivityResponse,
    RemovePreferredPartitionRequest,
    RemovePreferredPartitionResponse,
    ServerPartitionsAssignmentRequest,
    ServerPartitionsAssignmentResponse,
    ServerPartitionsHealthRequest,
    ServerPartitionsHealthResponse,
)
from waltz.wire.denial_protocol import Denied
from waltz.wire.discovery_protocol import PartitionProblems, PartitionProblemsRequest
from waltz.wire.message import Message
from waltz.wire.report_protocol import (
    NEVER,
    CoordinatorLocation,
    CoordinatorRequest,
    DurationsReport,
    DurationsRequest,
    PartitionReport,
    PartitionReports,
    PartitionReportsRequest,
    RefusalsReport,
    RefusalsRequest,
    StageDurations,
)

T = TypeVar("T", bound=Message)

SPOKEN = CLIENT_CODEC.up_to(4)
"""The versions spoken here. Later ones begin with a handshake, which is for connections that are
kept."""

NOBODY = RequestId(NO_CLIENT, Generation(0), PartitionId(0), 0)
"""The request ID of tools that are no clients: the same as the original's."""

ANSWER_SECONDS_MAX = HANDSHAKE_SECONDS_MAX + CONNECTIVITY_SECONDS_MAX
"""Seconds for an answer: a server takes up to CONNECTIVITY_SECONDS_MAX to try its storage nodes."""


@dataclass(frozen=True, slots=True)
class ServerReport:
    """A server's report on itself.

    `partitions`: per partition of the server, whether it has opened a store session. `storages`:
    which storage nodes it reaches; asked for only if a partition is not well, or completely.
    `assigned`: the partitions it is to have; asked for only completely. `reasons`: why partitions
    take no appends, in the server's words; asked for only if a partition is not well, and unknown
    to servers before version 5.
    """

    partitions: Mapping[PartitionId, bool]
    storages: Mapping[str, bool]
    assigned: frozenset[PartitionId] = frozenset()
    reasons: Mapping[PartitionId, str] = field(default_factory=dict)

    def problem(self, partition_id: PartitionId) -> str | None:
        """Return why the server takes no appends for the partition; None if it does."""
        is_open = self.partitions.get(partition_id)
        if is_open is None:
            return "its server has not opened it"
        if is_open:
            return None
        lost = [name for name, is_reached in sorted(self.storages.items()) if not is_reached]
        reached = f"{len(self.storages) - len(lost)} of {len(self.storages)} storage nodes"
        missing = f", not {', '.join(lost)}" if lost else ""
        reason = self.reasons.get(partition_id, "it has no store session")
        return f"{reason}; its server reaches {reached}{missing}"


@asynccontextmanager
async def talk_to_server(
    host: Host, address: Address, *, seconds: float = ANSWER_SECONDS_MAX
) -> AsyncIterator[Conversation]:
    """Connect to a server. Raises UnavailableError: it does not answer in time, or not as a
    server."""
    async with conversation(host, address, SPOKEN, CLIENT_GREETING, seconds=seconds) as talk:
        yield talk


async def ask_server(host: Host, address: Address, *, completely: bool = False) -> ServerReport:
    """Return the server's report. Raises UnavailableError: it does not answer in time, or not as a
    server."""
    async with talk_to_server(host, address) as talk:
        health = await ask_health(talk)
        is_well = all(health.values())
        storages = {} if is_well and not completely else await ask_connectivity(talk)
        assigned = await ask_assigned(talk) if completely else ()
    reasons = {} if is_well else await ask_reasons(host, address)
    return ServerReport(health, storages, frozenset(assigned), reasons)


async def ask_servers(
    host: Host, addresses: Iterable[Address]
) -> dict[Address, ServerReport | UnavailableError]:
    """Ask all servers at once and completely; a server that does not answer has its error as its
    answer.

    The time limit of each server is that of `ask_server`.
    """

    async def ask(address: Address) -> ServerReport | UnavailableError:
        try:
            return await ask_server(host, address, completely=True)
        except UnavailableError as error:
            return error

    asked = list(addresses)
    return dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))


async def prefer_partitions(
    host: Host,
    address: Address,
    *,
    add: Sequence[PartitionId] = (),
    remove: Sequence[PartitionId] = (),
) -> bool:
    """Have a server prefer these partitions, or no longer; return whether it has taken note.

    Raises UnavailableError: it does not answer, and may have taken note.
    """
    result = True
    async with talk_to_server(host, address) as talk:
        if add:
            question = AddPreferredPartitionRequest(NOBODY, tuple(add))
            result &= (await talk.ask(question, AddPreferredPartitionResponse)).result
        if remove:
            other = RemovePreferredPartitionRequest(NOBODY, tuple(remove))
            result &= (await talk.ask(other, RemovePreferredPartitionResponse)).result
    return result


async def ask_health(talk: Conversation) -> Mapping[PartitionId, bool]:
    """Return whether each partition of the server takes appends. Raises UnavailableError."""
    answer = await talk.ask(ServerPartitionsHealthRequest(NOBODY), ServerPartitionsHealthResponse)
    return dict(answer.health)


async def ask_reasons(host: Host, address: Address) -> Mapping[PartitionId, str]:
    """Return, for each of the server's partitions that takes no appends, the reason; nothing if the
    server cannot give reasons."""
    try:
        connection = await ServerConnection.open(host, address)
        try:
            if connection.send([PartitionProblemsRequest(0)]):
                return {}
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                while (messages := await connection.receive()) is not None:
                    for message in messages:
                        if isinstance(message, PartitionProblems):
                            return {each.partition_id: each.reason for each in message.problems}
        finally:
            connection.close()
    except (UnavailableError, RemoteProtocolError, HandshakeRefusedError, TimeoutError):
        pass  # the rest of the report is worth having without reasons
    return {}


@dataclass(frozen=True, slots=True)
class ReportAnswers:
    """A server's reports on its partitions, once their replicas have answered it, and on its
    coordinator: seconds since that last answered the server, and what is wrong with it."""

    reports: Mapping[PartitionId, PartitionReport]
    coordinator_seconds: float | None
    coordinator_problem: str | None


async def ask_reports(
    host: Host,
    address: Address,
    partition_ids: Sequence[PartitionId],
    *,
    seconds: float = ANSWER_SECONDS_MAX,
) -> ReportAnswers:
    """Ask for reports on these partitions; partitions that the server does not have are left out.

    Raises UnavailableError: the server does not answer, or its version has no reports.
    """
    reports: dict[PartitionId, PartitionReport] = {}
    age, problem = NEVER, None
    wanted = list(partition_ids)
    for first in range(0, max(len(wanted), 1), REPORTS_MAX):
        request = PartitionReportsRequest(0, tuple(wanted[first : first + REPORTS_MAX]))
        answer, _ = await _ask_by_handshake(host, address, request, PartitionReports, seconds)
        reports.update({each.partition_id: each for each in answer.reports})
        age, problem = answer.coordinator_milliseconds, answer.coordinator
    return ReportAnswers(reports, None if age == NEVER else age / 1000, problem)


async def partition_server(host: Host, root: str, partition_id: PartitionId) -> Address:
    """Return the address of the server that the metadata names for a partition.

    Raises ConfigurationError: there is no such partition; UnavailableError: it has no server now;
    NoNodeError: there is no cluster; CoordinatorLostError.
    """
    params = await read_store_params(host.coordinator, root)
    if not 0 <= partition_id < params.partition_count:
        raise ConfigurationError(
            f"there is no partition {partition_id}; expected 0 to {params.partition_count - 1}"
        )
    _, membership = await read_membership(host.coordinator, ClusterPaths(root).server_descriptors)
    for server_id, owned in membership.assignment.servers.items():
        if partition_id in owned and server_id in membership.descriptors:
            return membership.descriptors[server_id].address
    raise UnavailableError(f"partition {partition_id} has no server now")


async def ask_refusals(
    host: Host,
    address: Address,
    partition_id: PartitionId,
    count_max: int,
    *,
    winner: TransactionId | None = None,
    loser: RequestId | None = None,
    lock_hash: int | None = None,
) -> RefusalsReport:
    """Return the newest refusals of a partition that its server remembers, at most `count_max`:
    all, or those with this winner, this refused append and this lock.

    Raises UnavailableError: the server does not answer, does not have the partition, or has a
    release that cannot say.
    """
    request = RefusalsRequest(0, partition_id, count_max, winner, loser, lock_hash)
    answer, _ = await _ask_by_handshake(
        host, address, request, RefusalsReport, HANDSHAKE_SECONDS_MAX
    )
    if answer.kept is None:
        raise UnavailableError(f"server {address} does not have partition {partition_id} now")
    return answer


async def ask_durations(
    host: Host, address: Address, partition_id: PartitionId
) -> tuple[StageDurations, ...]:
    """Return the durations of a partition's appends by stage, since its server has opened it.
    Raises as `ask_refusals`."""
    request = DurationsRequest(0, partition_id)
    answer, _ = await _ask_by_handshake(
        host, address, request, DurationsReport, HANDSHAKE_SECONDS_MAX
    )
    if not answer.stages:
        raise UnavailableError(f"server {address} does not have partition {partition_id} now")
    return answer.stages


class ToldCoordinator(NamedTuple):
    """The coordinator's address as a server has it, and the key of the server's cluster."""

    address: CoordinatorAddress
    cluster_key: UUID


async def find_coordinator(
    host: Host,
    servers: ServersAddress,
    new_coordinator: Callable[[CoordinatorAddress], Coordinator],
) -> CoordinatorAddress:
    """Return the address of the coordinator that the servers name, once it has answered this
    process.

    Raises UnavailableError: no server names one, or the coordinator does not answer;
    ConfigurationError: at its address, as seen from here, another cluster answers; NoNodeError.
    """
    told = await ask_coordinator(host, servers)
    coordinator = new_coordinator(told.address)
    try:
        params = await read_store_params(coordinator, root_at(told.address))
    finally:
        await coordinator.close()
    if params.cluster_key != told.cluster_key:
        raise ConfigurationError(
            f"the servers {servers} are of cluster {told.cluster_key} and have their coordinator at"
            f" {told.address}, where cluster {params.cluster_key} answers from here: that address"
            " means another machine to them. Give the coordinator's address as it is reached from"
            " here: host:port or zookeeper://host:port/root"
        )
    return told.address


async def ask_coordinator(host: Host, servers: ServersAddress) -> ToldCoordinator:
    """Return the coordinator's address from the first server that answers.

    Raises UnavailableError: no server answers; the text has the reason of each.
    """
    troubles = []
    for address in servers.servers:
        try:
            answer, cluster_key = await _ask_by_handshake(
                host, address, CoordinatorRequest(0), CoordinatorLocation, HANDSHAKE_SECONDS_MAX
            )
            if answer.address is not None:
                return ToldCoordinator(parse_coordinator(answer.address), cluster_key)
            troubles.append(f"server {address} does not tell where its coordinator is")
        except (UnavailableError, ConfigurationError) as error:
            troubles.append(f"{address}: {error}")
    raise UnavailableError(
        f"no server of {servers} says where the coordinator is, which this command needs:"
        f" {'; '.join(troubles)}. Give the coordinator's address: host:port or"
        " zookeeper://host:port/root"
    )


class HandshakeTalk:
    """A connection after its handshake, over which one question is asked at a time."""

    def __init__(self, connection: ServerConnection, agreement: Agreement, cannot_say: str) -> None:
        self._connection = connection
        self._cannot_say = cannot_say
        self.cluster_key = agreement.cluster_key

    async def ask(self, question: Message, kind: type[T]) -> T:
        """Return the answer. Raises UnavailableError: there is none, or there cannot be one."""
        if self._connection.send([question]):
            raise UnavailableError(self._cannot_say)
        while (messages := await self._connection.receive()) is not None:
            for message in messages:
                if isinstance(message, kind):
                    return message
                if isinstance(message, Denied):
                    raise UnavailableError(str(denial_error(message)))
        raise UnavailableError(f"{self._cannot_say}, or has ended the connection")


@asynccontextmanager
async def talk_by_handshake(
    host: Host, address: Address, seconds: float
) -> AsyncIterator[HandshakeTalk]:
    """Connect to a server for questions that only versions from 5 on know. All of it may take
    `seconds`. Raises UnavailableError."""
    cannot_say = f"the release of server {address} cannot say this"
    try:
        async with asyncio.timeout(seconds):
            connection = await ServerConnection.open(host, address)
            try:
                if connection.agreement is None:
                    raise UnavailableError(cannot_say)
                yield HandshakeTalk(connection, connection.agreement, cannot_say)
            finally:
                connection.close()
    except TimeoutError:
        raise OperationTimeoutError(f"no answer from {address} in {seconds:g} s") from None
    except (ConnectionLostError, ProtocolError) as error:
        # A server of an earlier release closes the connection on a question that it does not know.
        raise UnavailableError(f"{cannot_say}, or has ended the connection: {error}") from error


async def _ask_by_handshake(
    host: Host, address: Address, question: Message, kind: type[T], seconds: float
) -> tuple[T, UUID]:
    """Ask one question that only versions from 5 on know; return the answer and the key of the
    server's cluster. Raises UnavailableError."""
    async with talk_by_handshake(host, address, seconds) as talk:
        return await talk.ask(question, kind), talk.cluster_key


async def ask_connectivity(talk: Conversation) -> Mapping[str, bool]:
    """Return whether the server reaches each storage node; the server waits for them itself.

    Raises UnavailableError.
    """
    answer = await talk.ask(
        CheckStorageConnectivityRequest(NOBODY),
        CheckStorageConnectivityResponse,
        seconds_min=ANSWER_SECONDS_MAX,
    )
    return dict(answer.connectivity)


async def ask_assigned(talk: Conversation) -> tuple[PartitionId, ...]:
    """Return the partitions that the server takes for its own, sorted. Raises UnavailableError."""
    answer = await talk.ask(
        ServerPartitionsAssignmentRequest(NOBODY), ServerPartitionsAssignmentResponse
    )
    return tuple(sorted(answer.partition_ids))
