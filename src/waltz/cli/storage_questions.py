"""Asks a storage node what it holds, what is wrong with it, and which of its ports work.

Owns the two kinds of connection to a node: to the servers' port and to the tools' port.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from waltz.cluster.store_params import StoreParams
from waltz.errors import ConfigurationError, RemoteStorageError, UnavailableError, WaltzError
from waltz.host import Host
from waltz.limits import HANDSHAKE_SECONDS_MAX, PARTITIONS_MAX
from waltz.operators.conversation_shell import Conversation, conversation, talk_to_admin_port
from waltz.types import NO_SESSION, Address, PartitionId, ReplicaId
from waltz.wire.admin_protocol import (
    AdminLastSessionInfoRequest,
    AdminLastSessionInfoResponse,
    AssignedPartitionStatusRequest,
    AssignedPartitionStatusResponse,
    MetricsRequest,
    MetricsResponse,
    SessionInfo,
)
from waltz.wire.storage_protocol import (
    STORAGE_CLIENT_GREETING,
    STORAGE_CODEC,
    OpenRequest,
    SuccessResponse,
)

NOBODY = -1
"""The sequence number and the partition of requests outside of a session."""


@dataclass(frozen=True, slots=True)
class StorageReport:
    """A storage node's report. `trouble` is why servers cannot use the node, `admin_trouble` why
    tools cannot; None if they can. `usable` has the partitions that the node has taken, and whether
    servers are served in full. `problems` are the node's own words: damage, a full disk, what an
    administrator closed."""

    trouble: str | None
    admin_trouble: str | None
    usable: Mapping[PartitionId, bool] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    partition_problems: Mapping[PartitionId, tuple[str, ...]] = field(default_factory=dict)
    metrics_json: str | None = field(default=None, compare=False, repr=False)
    """The node's figures as it gave them; None: it gave none."""
    refuses: bool = field(default=False, compare=False)
    """Whether a trouble is the node's own answer."""

    def unreachable(self) -> str | None:
        """Return which of the two ports cannot be used, and why; None if both can."""
        if self.trouble is not None and self.admin_trouble is not None:
            why = "cannot be used by servers and tools" if self.refuses else "does not answer"
            return f"{why}: {self.trouble}; {self.admin_trouble}"
        if self.trouble is not None:
            return f"cannot be used by servers: {self.trouble}"
        if self.admin_trouble is not None:
            return f"cannot be reached by tools: {self.admin_trouble}"
        return None

    def told(self) -> tuple[str, ...]:
        """Return everything that is wrong, a line per problem."""
        unreachable = self.unreachable()
        return (
            *([] if unreachable is None else [unreachable]),
            *self.problems,
            *(
                f"partition {partition_id}: {problem}"
                for partition_id, problems in sorted(self.partition_problems.items())
                for problem in problems
            ),
        )


@asynccontextmanager
async def talk_to_data_port(
    host: Host, address: Address, params: StoreParams, *, seconds: float = HANDSHAKE_SECONDS_MAX
) -> AsyncIterator[Conversation]:
    """Open a connection as servers do. Raises UnavailableError. RemoteStorageError: the node is of
    another cluster."""
    async with conversation(
        host, address, STORAGE_CODEC, STORAGE_CLIENT_GREETING, seconds=seconds
    ) as talk:
        request = OpenRequest(
            NO_SESSION,
            NOBODY,
            PartitionId(NOBODY),
            params.cluster_key,
            params.partition_count,
        )
        await talk.ask(request, SuccessResponse)
        yield talk


def admin_address_of(replica_id: ReplicaId, admin_ports: Mapping[ReplicaId, int]) -> Address:
    """Return the node's admin address. Raises ConfigurationError: the cluster's metadata does not
    have it."""
    port = admin_ports.get(replica_id)
    if port is None:
        raise ConfigurationError(f"no admin port of storage node {replica_id} is known")
    return Address(Address.parse(replica_id).host, port)


async def ask_storage(
    host: Host,
    replica_id: ReplicaId,
    admin_ports: Mapping[ReplicaId, int],
    params: StoreParams,
    *,
    seconds: float = HANDSHAKE_SECONDS_MAX,
) -> StorageReport:
    """Ask both ports of a node; an error is part of the report."""

    async def data_trouble() -> WaltzError | None:
        try:
            address = Address.parse(replica_id)
            async with talk_to_data_port(host, address, params, seconds=seconds):
                return None
        except (UnavailableError, RemoteStorageError, ConfigurationError) as error:
            return error

    async def admin_report() -> StorageReport:
        try:
            admin = admin_address_of(replica_id, admin_ports)
            async with talk_to_admin_port(host, admin, params, seconds=seconds) as talk:
                usable = await ask_usable(talk)
                try:
                    metrics = await ask_metrics(talk)
                except RemoteStorageError as error:
                    return StorageReport(None, None, usable, _untold(error))
                return StorageReport(None, None, usable, *problems_in(metrics), metrics)
        except (UnavailableError, RemoteStorageError, ConfigurationError) as error:
            refuses = isinstance(error, RemoteStorageError)
            return StorageReport(None, str(error), refuses=refuses)

    # At once, so that both answers are equally fresh.
    trouble, report = await asyncio.gather(data_trouble(), admin_report())
    if trouble is None:
        return report
    refuses = report.refuses or isinstance(trouble, RemoteStorageError)
    return replace(report, trouble=str(trouble), refuses=refuses)


async def ask_usable(talk: Conversation) -> Mapping[PartitionId, bool]:
    """Return the partitions that the node has taken, and whether servers are served in full.

    Raises UnavailableError, RemoteStorageError.
    """
    answer = await talk.ask(AssignedPartitionStatusRequest(0), AssignedPartitionStatusResponse)
    return dict(sorted(answer.statuses))


async def ask_session(talk: Conversation, partition_id: PartitionId) -> SessionInfo:
    """Return the partition's last session and marks on that node. Raises UnavailableError,
    RemoteStorageError: the node has not taken the partition."""
    answer = await talk.ask(
        AdminLastSessionInfoRequest(0, partition_id), AdminLastSessionInfoResponse
    )
    return answer.session_info


async def ask_problems(
    talk: Conversation,
) -> tuple[tuple[str, ...], Mapping[PartitionId, tuple[str, ...]]]:
    """Return the node's own problems, and those of each partition; a node of the Java original
    reports none. Raises UnavailableError."""
    try:
        return problems_in(await ask_metrics(talk))
    except RemoteStorageError as error:
        return _untold(error), {}


async def ask_metrics(talk: Conversation) -> str:
    """Return the node's figures as JSON. Raises UnavailableError, RemoteStorageError."""
    return (await talk.ask(MetricsRequest(0), MetricsResponse)).metrics_json


def _untold(error: RemoteStorageError) -> tuple[str, ...]:
    return (f"it does not report its problems: {error}",)


def problems_in(metrics_json: str) -> tuple[tuple[str, ...], Mapping[PartitionId, tuple[str, ...]]]:
    """Return the problems in a node's metrics; text of another form than that of our nodes has
    none."""
    try:
        found: Any = json.loads(metrics_json)
    except (ValueError, RecursionError):
        return (), {}
    if not isinstance(found, dict):
        return (), {}
    partitions = found.get("partitions")
    of_partitions = {
        PartitionId(int(name)): texts
        for name, entry in (partitions.items() if isinstance(partitions, dict) else ())
        if _is_partition_id(name) and isinstance(entry, dict)
        if (texts := _texts(entry.get("problems")))
    }
    return _texts(found.get("problems")), of_partitions


def _is_partition_id(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= len(str(PARTITIONS_MAX))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
