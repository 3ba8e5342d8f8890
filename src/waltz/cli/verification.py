"""Is the cluster all right? The checks of `waltz cluster verify`, on what was gathered for them.

Owns what is right and how a fault is told: what is wrong, where, with which partitions. Pure: it
asks nobody anything. A quorum is over the partition's own replicas, however many storage nodes the
cluster has; the original counts all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from waltz.cli.cluster_list import ClusterMetadata
from waltz.cli.storage_questions import StorageReport
from waltz.types import Address, PartitionId, ReplicaId, ServerId


@dataclass(frozen=True, slots=True)
class ServerAnswers:
    """What a server said, or in `trouble` why it said nothing."""

    trouble: str | None
    assigned: frozenset[PartitionId] = frozenset()
    health: Mapping[PartitionId, bool] | None = None
    reaches: Mapping[str, bool] | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The cluster as it was found; `servers` has an entry for each descriptor, `storages` for each
    storage node of the placement."""

    metadata: ClusterMetadata
    servers: Mapping[ServerId, ServerAnswers]
    storages: Mapping[ReplicaId, StorageReport]

    @property
    def partition_ids(self) -> Sequence[PartitionId]:
        return [PartitionId(number) for number in range(self.metadata.partition_count)]

    def owned(self, server_id: ServerId) -> Collection[PartitionId]:
        return self.metadata.membership.assignment.servers.get(server_id, {}).keys()

    def owner(self, partition_id: PartitionId) -> ServerId | None:
        servers = self.metadata.membership.assignment.servers
        return next((each for each, held in servers.items() if partition_id in held), None)

    def address(self, server_id: ServerId) -> Address:
        return self.metadata.membership.descriptors[server_id].address


@dataclass(frozen=True, slots=True)
class Fault:
    """`partition_ids` are those that it concerns, sorted; it may concern none, and is a fault all
    the same."""

    check: str
    text: str
    partition_ids: tuple[PartitionId, ...]


FINISH: Final = "waltz cluster add-partitions --to"

Check: TypeAlias = Callable[[Facts], Iterator[tuple[str, Collection[PartitionId]]]]


def assignment(facts: Facts) -> Iterator[tuple[str, Collection[PartitionId]]]:
    """Every partition is owned by exactly one live server (TL-52)."""
    membership = facts.metadata.membership
    counts = facts.metadata.counts
    if counts.is_half_added:
        text = f"partitions are being added, {counts.store} in all, and that is not finished"
        yield f"{text}; if nobody is at it: {FINISH} {counts.store}", ()
    elif membership.descriptors and counts.assigned < counts.cluster:
        text = f"{counts.cluster - counts.assigned} partitions were added, and no server has them"
        yield f"{text}: {FINISH} {counts.cluster}", ()
    if not membership.descriptors:
        yield "no server is running; start one", facts.partition_ids
        return
    if not membership.is_consistent:
        coordinator = facts.address(min(membership.descriptors))
        text = "servers came or went, and the partitions are not dealt out anew; that is for server"
        yield f"{text} {coordinator} to do: look at its log if it lasts", facts.partition_ids
    addresses = [each.address for each in membership.descriptors.values()]
    for address in sorted({each for each in addresses if addresses.count(each) > 1}):
        yield f"two servers run at {address}; one of them may be a dead one's leftover", ()
    for server_id in sorted(membership.assignment.servers.keys() - membership.descriptors.keys()):
        if held := facts.owned(server_id):
            yield f"server {server_id} is not running, and still owns them", held
    without = [number for number in facts.partition_ids if facts.owner(number) is None]
    if without:
        yield "no server owns them", without


def servers(facts: Facts) -> Iterator[tuple[str, Collection[PartitionId]]]:
    """What a server believes to own is what the coordinator says (TL-53)."""
    for server_id, answers in sorted(facts.servers.items()):
        address, owned = facts.address(server_id), {*facts.owned(server_id)}
        if answers.trouble is not None:
            yield f"server {address} does not answer: {answers.trouble}", owned
            continue
        if missing := owned - answers.assigned:
            yield f"server {address} owns them and does not know it", missing
        if surplus := answers.assigned - owned:
            yield f"server {address} believes to own them and does not", surplus


def connectivity(facts: Facts) -> Iterator[tuple[str, Collection[PartitionId]]]:
    """Every server reaches every storage node (TL-54)."""
    for server_id, answers in sorted(facts.servers.items()):
        for node in facts.metadata.replicas():
            if answers.reaches is not None and not answers.reaches.get(node, False):
                held = facts.metadata.placement.partitions[node]
                common = {*held} & {*facts.owned(server_id)}
                yield (
                    f"server {facts.address(server_id)} does not reach storage node {node}",
                    common,
                )


def storages(facts: Facts) -> Iterator[tuple[str, Collection[PartitionId]]]:
    """Every storage node has taken what is assigned to it, serves it, and is well (TL-55)."""
    placement = facts.metadata.placement
    for node in facts.metadata.replicas():
        report, held = facts.storages[node], placement.partitions[node]
        if node not in placement.groups:
            yield f"storage node {node} has no group; remove it and add it again", held
        if unreachable := report.unreachable():
            yield f"storage node {node} {unreachable}", held
        if report.admin_trouble is not None:
            continue
        if missing := {*held} - report.usable.keys():
            yield (
                f"storage node {node} has not taken them; run waltz admin storage sync-partitions",
                missing,
            )
        for problem in report.problems:
            yield f"storage node {node}: {problem}", held
        told = report.partition_problems
        for number in held:
            for problem in told.get(number, ()):
                yield f"storage node {node}: {problem}", (number,)
            if not told.get(number) and report.usable.get(number) is False:
                yield f"storage node {node} does not let servers use it", (number,)


def quorum(facts: Facts) -> Iterator[tuple[str, Collection[PartitionId]]]:
    """A majority of the partition's own replicas can be used and take part (TL-56)."""
    for number in facts.partition_ids:
        replicas = facts.metadata.placement.holding(number)
        metadata = facts.metadata.partitions.get(number)
        current = () if metadata is None else metadata.current_replicas
        good = [node for node in replicas if node in current and _serves(facts, node, number)]
        if not replicas:
            yield "no storage node holds it: waltz cluster assign", (number,)
        elif 2 * len(good) <= len(replicas):
            bad = ", ".join(node for node in replicas if node not in good)
            yield f"{len(good)} of {len(replicas)} replicas, no majority; not {bad}", (number,)


def _serves(facts: Facts, node: ReplicaId, partition_id: PartitionId) -> bool:
    report = facts.storages[node]
    return report.trouble is None and report.usable.get(partition_id, False)


def recovery(facts: Facts) -> Iterator[tuple[str, Collection[PartitionId]]]:
    """All replicas take part in the partition's current store session (TL-57)."""
    for number in facts.partition_ids:
        replicas = facts.metadata.placement.holding(number)
        metadata = facts.metadata.partitions.get(number)
        if metadata is None:
            yield "no server has ever opened a store session", (number,)
            continue
        if behind := [node for node in replicas if node not in metadata.current_replicas]:
            yield f"no part in the store session is taken by {', '.join(behind)}", (number,)
        if leaving := [node for node in metadata.current_replicas if node not in replicas]:
            yield (
                f"the store session still counts on {', '.join(leaving)}, not assigned any more",
                (number,),
            )


def health(facts: Facts) -> Iterator[tuple[str, Collection[PartitionId]]]:
    """Every partition's server takes appends for it (TL-58)."""
    for server_id, answers in sorted(facts.servers.items()):
        if answers.health is None:
            continue
        found = answers.health
        if ill := [number for number in facts.owned(server_id) if not found.get(number, False)]:
            yield f"server {facts.address(server_id)} takes no appends for them", ill


CHECKS: Final[Mapping[str, Check]] = {
    "assignment": assignment,
    "servers": servers,
    "connectivity": connectivity,
    "storages": storages,
    "quorum": quorum,
    "recovery": recovery,
    "health": health,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was judged, and every fault that was found."""

    partition_ids: tuple[PartitionId, ...]
    faults: tuple[Fault, ...]

    @property
    def has_passed(self) -> bool:
        return not self.faults

    @property
    def failed_partitions(self) -> tuple[PartitionId, ...]:
        failed = {number for fault in self.faults for number in fault.partition_ids}
        return tuple(number for number in self.partition_ids if number in failed)

    def failed(self, check: str) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if fault.check == check)


def verdict(facts: Facts, partition_ids: Collection[PartitionId] | None = None) -> Verdict:
    """Judge everything; with `partition_ids` only what concerns one of these."""
    wanted = facts.partition_ids if partition_ids is None else sorted({*partition_ids})
    concerned: dict[tuple[str, str], set[PartitionId]] = {}
    for name, check in CHECKS.items():
        for text, numbers in check(facts):
            judged = {*numbers} & {*wanted}
            if judged or partition_ids is None:
                concerned.setdefault((name, text), set()).update(judged)
    faults = [
        Fault(name, text, tuple(sorted(numbers))) for (name, text), numbers in concerned.items()
    ]
    return Verdict(tuple(wanted), tuple(faults))
