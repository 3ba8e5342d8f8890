"""Consumers by name: the marks that the coordinator keeps, and what servers say of connected ones.

What the coordinator keeps is as old as it says; everything else is what servers say now. A server
that does not answer leaves its partitions unknown, and nothing is said in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from waltz.cluster.cluster_shell import read_cluster_params, read_membership
from waltz.cluster.consumer_marks import KeptMark
from waltz.cluster.consumers_shell import read_consumers
from waltz.cluster.paths import ClusterPaths
from waltz.errors import RemoteProtocolError, UnavailableError
from waltz.host import Host
from waltz.limits import HANDSHAKE_SECONDS_MAX
from waltz.log_fields import printable
from waltz.operators.client_questions_shell import (
    Lag,
    MountedClient,
    ServerClients,
    ask_all_clients,
)
from waltz.types import Address, Generation, PartitionId, TransactionId

Owners: TypeAlias = Mapping[PartitionId, tuple[Address, Generation]]
"""The server of each partition, as the coordinator says it."""


@dataclass(frozen=True, slots=True)
class ConsumerInstance:
    """A client of a consumer's name that is connected to `server`."""

    server: Address
    client: MountedClient


@dataclass(frozen=True, slots=True)
class ConsumerPartition:
    """A partition of a consumer.

    `mark` is the highest that is known, None if none is. If `is_current`, a client that is
    connected tells it, within a second; otherwise the consumer may have applied more since, and the
    lags are upper bounds. `high_water_mark` is None if no server says it; so are the lags.
    """

    partition_id: PartitionId
    kept: KeptMark | None
    mark: TransactionId | None
    is_current: bool
    high_water_mark: TransactionId | None
    lag: Lag | None

    @property
    def lag_transactions(self) -> int | None:
        if self.mark is None or self.high_water_mark is None:
            return None
        behind = self.high_water_mark - self.mark
        return behind if behind >= 0 else None


@dataclass(frozen=True, slots=True)
class NamedConsumer:
    """A consumer, or with `name` None a client without a name. `trouble` is why the coordinator's
    node cannot be read, if it cannot."""

    name: str | None
    partitions: tuple[ConsumerPartition, ...]
    instances: tuple[ConsumerInstance, ...]
    trouble: str | None = None

    @property
    def has_all_partitions(self) -> bool:
        """Whether `partitions` are all that are known of it somewhere: its kept marks could be
        read, and no server has left out a partition that one of its clients has mounted."""
        is_left_out = any(each.client.mounts_left_out for each in self.instances)
        return self.trouble is None and not is_left_out

    @property
    def is_current(self) -> bool:
        """Whether every mark is; see `ConsumerPartition`."""
        return self.has_all_partitions and all(each.is_current for each in self.partitions)

    @property
    def last_known_milliseconds(self) -> int | None:
        """Return when a server kept a mark of it last, by that server's wall clock; None: never."""
        kept = [each.kept.wall_milliseconds for each in self.partitions if each.kept is not None]
        return max(kept, default=None)

    @property
    def lag_transactions(self) -> int | None:
        """Return the sum over its partitions; None if any is unknown."""
        lags = [each.lag_transactions for each in self.partitions]
        if None in lags or not self.has_all_partitions:
            return None
        return sum(each or 0 for each in lags)

    @property
    def lag(self) -> Lag | None:
        """Return the lag of the partition that lags most; None if any is unknown."""
        lags = [each.lag for each in self.partitions]
        if not lags or None in lags or not self.has_all_partitions:
            return None
        known = [each for each in lags if each is not None]
        most = [each.most_seconds for each in known]
        return Lag(
            max(each.least_seconds for each in known),
            None if None in most else max(each or 0.0 for each in most),
        )


@dataclass(frozen=True, slots=True)
class ConsumersView:
    """All consumers. `age_seconds` is the age of the servers' answers, None if none answered;
    `unasked` has the servers that gave none, with the reason. `is_complete`: every server said
    everything."""

    consumers: tuple[NamedConsumer, ...]
    age_seconds: float | None
    unasked: Mapping[Address, str]
    is_complete: bool


async def read_named_consumers(
    host: Host,
    root: str,
    *,
    everybody: bool = False,
    seconds: float = HANDSHAKE_SECONDS_MAX,
) -> ConsumersView:
    """Return the consumers that the coordinator or a server knows; with `everybody` also all other
    mounted clients. Raises NoNodeError: there is no cluster. CoordinatorLostError."""
    await read_cluster_params(host.coordinator, root)
    kept = await read_consumers(host.coordinator, root=root)
    before, addresses = await _read_owners(host, root)
    marks = {
        (partition_id, mark.transaction_id)
        for found in kept.values()
        if not isinstance(found, RemoteProtocolError)
        for partition_id, mark in found.items()
    }
    answers = await ask_all_clients(host, addresses, marks, seconds=seconds)
    after, _ = await _read_owners(host, root)
    owners = {each: owner for each, owner in before.items() if after.get(each) == owner}
    return view_consumers(kept, answers, owners, everybody=everybody)


async def _read_owners(host: Host, root: str) -> tuple[Owners, list[Address]]:
    """Return the server and generation of each partition, and the addresses of all servers."""
    _, membership = await read_membership(host.coordinator, ClusterPaths(root).server_descriptors)
    addresses = {each: found.address for each, found in membership.descriptors.items()}
    owners = {
        partition_id: (addresses[server_id], generation)
        for server_id, owned in membership.assignment.servers.items()
        if server_id in addresses
        for partition_id, generation in owned.items()
    }
    return owners, sorted({*addresses.values()})


def view_consumers(
    kept: Mapping[str, Mapping[PartitionId, KeptMark] | RemoteProtocolError],
    answers: Mapping[Address, ServerClients | UnavailableError],
    owners: Owners,
    *,
    everybody: bool = False,
) -> ConsumersView:
    """Return what the coordinator's nodes and the servers' answers say together.

    Where a log ends is said by the server that has had the partition, under the same generation,
    from before it was asked until after it has answered: a server that has lost a partition and
    does not know it yet would say that nobody is behind.
    """
    said = {each: found for each, found in answers.items() if isinstance(found, ServerClients)}
    instances: dict[str | None, list[ConsumerInstance]] = {}
    for address, answer in said.items():
        for client in answer.clients:
            if everybody or client.is_consumer:
                instance = ConsumerInstance(address, client)
                instances.setdefault(client.name, []).append(instance)
    nameless = instances.pop(None, [])
    ends = _ends(said, owners)
    consumers = [
        _consumer(name, kept.get(name, {}), instances.get(name, ()), ends)
        for name in sorted({*kept, *(name for name in instances if name is not None)})
    ]
    by_client: dict[int, list[ConsumerInstance]] = {}
    for instance in nameless:
        by_client.setdefault(instance.client.client_id, []).append(instance)
    consumers += [_consumer(None, {}, found, ends) for _, found in sorted(by_client.items())]
    return ConsumersView(
        tuple(consumers),
        max((each.age_seconds for each in said.values()), default=None),
        {each: str(found) for each, found in answers.items() if isinstance(found, Exception)},
        len(said) == len(answers) and all(each.is_complete for each in said.values()),
    )


def _ends(
    said: Mapping[Address, ServerClients], owners: Owners
) -> Mapping[PartitionId, tuple[Address, ServerClients]]:
    """Return for each partition the server that says where its log ends, and its answer."""
    return {
        partition_id: (address, said[address])
        for partition_id, (address, generation) in owners.items()
        if address in said and said[address].generations.get(partition_id) == generation
    }


class _KnownMark(NamedTuple):
    mark: TransactionId
    is_current: bool
    lag: Lag | None

    @property
    def bound(self) -> Lag | None:
        """Return the lag; of a mark that is not current, as far as it is an upper bound."""
        if self.is_current or self.lag is None:
            return self.lag
        return None if self.lag.most_seconds is None else Lag(0.0, self.lag.most_seconds)


def _consumer(
    name: str | None,
    kept: Mapping[PartitionId, KeptMark] | RemoteProtocolError,
    instances: Sequence[ConsumerInstance],
    ends: Mapping[PartitionId, tuple[Address, ServerClients]],
) -> NamedConsumer:
    marks: Mapping[PartitionId, KeptMark]
    marks, trouble = (kept, None) if not isinstance(kept, RemoteProtocolError) else ({}, str(kept))
    mounts: dict[PartitionId, list[_KnownMark]] = {}
    for instance in instances:
        for mount in instance.client.mounts:
            found = mounts.setdefault(mount.partition_id, [])
            if mount.applied is not None:
                is_current = instance.client.tells_marks and instance.client.is_connected
                end = ends.get(mount.partition_id)
                lag = mount.lag if end is not None and end[0] == instance.server else None
                found.append(_KnownMark(mount.applied, is_current, lag))
    return NamedConsumer(
        None if name is None else printable(name),
        tuple(
            _partition(each, marks.get(each), mounts.get(each, ()), ends.get(each))
            for each in sorted({*marks, *mounts})
        ),
        tuple(instances),
        trouble,
    )


def _partition(
    partition_id: PartitionId,
    kept: KeptMark | None,
    told: Sequence[_KnownMark],
    end: tuple[Address, ServerClients] | None,
) -> ConsumerPartition:
    """Several clients of one name that have mounted one partition are as far as the one that has
    applied most; each is shown by itself as well."""
    answer = None if end is None else end[1]
    last = None if answer is None else answer.high_water_marks[partition_id]
    known = list(told)
    if kept is not None:
        lag = None if answer is None else answer.lags.get((partition_id, kept.transaction_id))
        known.append(_KnownMark(kept.transaction_id, False, lag))
    if not known:
        return ConsumerPartition(partition_id, kept, None, False, last, None)
    best = max(known, key=lambda each: (each.mark, each.is_current))
    return ConsumerPartition(partition_id, kept, best.mark, best.is_current, last, best.bound)
