"""Judges whether a cluster is well: the checks of `waltz cluster verify`, on facts gathered for
them.

Owns what is right and how a fault is reported: what is wrong, where, with which partitions. Pure:
it asks no process anything. A quorum is over the partition's own replicas, however many storage
nodes the cluster has; the original counts all storage nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from waltz.cli.cluster_list import ClusterMetadata
from waltz.cli.replica_standing import ReplicaView, view_replicas
from waltz.cli.server_answers import ServerAnswers
from waltz.cli.storage_questions import StorageReport
from waltz.majority import majority
from waltz.types import Address, PartitionId, ReplicaId, ServerId
from waltz.wire.report_protocol import PartitionReport


@dataclass(frozen=True, slots=True)
class Facts:
    """The state of a cluster; `servers` has an entry for each descriptor, `storages` for each
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

    def report(self, partition_id: PartitionId) -> PartitionReport | None:
        """Return the report of the partition's server; None if there is none."""
        owner = self.owner(partition_id)
        answers = None if owner is None else self.servers.get(owner)
        reports = None if answers is None else answers.reports
        return None if reports is None else reports.get(partition_id)

    def replicas(self, partition_id: PartitionId) -> tuple[ReplicaView, ...]:
        """Return the replicas that the partition is assigned to, as they reported to its server."""
        held_by = self.metadata.placement.holding(partition_id)
        return view_replicas(held_by, self.report(partition_id))


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. `partition_ids` are the partitions it concerns, sorted; there may be none.
    `is_known` False: it could not be learnt whether something is wrong."""

    check: str
    text: str
    partition_ids: tuple[PartitionId, ...]
    is_known: bool = True


class Unknown(str):
    """The text of a fault that could not be confirmed."""


FINISH: Final = "waltz cluster add-partitions --to"

Check: TypeAlias = Callable[[Facts], Iterator[tuple[str, Collection[PartitionId]]]]


def assignment(facts: Facts) -> Iterator[tuple[str, Collection[PartitionId]]]:
    """Every partition is owned by exactly one live server (TL-52)."""
    membership = facts.metadata.membership
    counts = facts.metadata.counts
    if counts.is_half_added:
        text = f"partitions are being added, {counts.store} in all, and that is not finished"
        yield f"{text}; if no command is doing it: {FINISH} {counts.store}", ()
    elif membership.descriptors and counts.assigned < counts.cluster:
        text = f"{counts.cluster - counts.assigned} partitions were added, and no server has them"
        yield f"{text}: {FINISH} {counts.cluster}", ()
    if not membership.descriptors:
        yield "no server is running; start one", facts.partition_ids
        return
    if not membership.is_consistent:
        coordinator = facts.address(min(membership.descriptors))
        text = "servers came or went, and the partitions were not reassigned; that is for server"
        yield f"{text} {coordinator} to do: look at its log if it lasts", facts.partition_ids
    addresses = [each.address for each in membership.descriptors.values()]
    for address in sorted({each for each in addresses if addresses.count(each) > 1}):
        yield (
            f"two servers run at {address}; one of the two entries may be that of a dead server",
            (),
        )
    for server_id in sorted(membership.assignment.servers.keys() - membership.descriptors.keys()):
        if held := facts.owned(server_id):
            yield f"server {server_id} is not running, and still owns them", held
    without = [number for number in facts.partition_ids if facts.owner(number) is None]
    if without:
        yield "no server owns them", without


def servers(facts: Facts) -> Iterator[tuple[str, Collection[PartitionId]]]:
    """Servers and the coordinator agree on the owners of partitions (TL-53)."""
    for server_id, answers in sorted(facts.servers.items()):
        address, owned = facts.address(server_id), {*facts.owned(server_id)}
        if answers.trouble is not None:
            yield f"server {address} does not answer: {answers.trouble}", owned
            continue
        if missing := owned - answers.assigned:
            yield f"server {address} owns them and does not know it", missing
        if surplus := answers.assigned - owned:
            yield f"server {address} believes that it owns them, and does not own them", surplus
        if answers.coordinator_problem is not None:
            yield f"server {address}: {answers.coordinator_problem}", owned


def connectivity(facts: Facts) -> Iterator[tuple[str, Collection[PartitionId]]]:
    """Every server reaches every storage node (TL-54)."""
    for server_id, answers in sorted(facts.servers.items()):
        address = facts.address(server_id)
        if answers.reaches is None:
            continue
        for node in facts.metadata.replicas():
            is_reached = answers.reaches.get(node)
            held = facts.metadata.placement.partitions[node]
            common = {*held} & {*facts.owned(server_id)}
            if is_reached is False:
                yield f"server {address} does not reach storage node {node}", common
            elif is_reached is None and held:
                # Servers of the original try only storage nodes that hold something.
                text = f"server {address} does not say whether it reaches storage node {node}"
                yield Unknown(text), common


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
    """A majority of the partition's own replicas hold every commit and take appends (TL-56)."""
    for number in facts.partition_ids:
        replicas = facts.metadata.placement.holding(number)
        if not replicas:
            yield "no storage node holds it: waltz cluster assign", (number,)
            continue
        needed = majority(len(replicas))
        dead = [node for node in replicas if not _serves(facts, node, number)]
        good, unsure = [], []
        for view in facts.replicas(number):
            if view.replica_id in dead:
                continue
            if view.is_current:
                good.append(view.replica_id)
            elif not view.is_fault:
                unsure.append(view.replica_id)
        if len(good) >= needed:
            continue
        bad = ", ".join(node for node in replicas if node not in (*good, *unsure))
        if len(good) + len(unsure) < needed:
            yield f"{len(good)} of {len(replicas)} replicas, no majority; not {bad}", (number,)
        else:
            yield (
                Unknown(
                    f"{len(good)} of {len(replicas)} replicas are known to take part; unknown:"
                    f" {', '.join(unsure)}"
                ),
                (number,),
            )


def _serves(facts: Facts, node: ReplicaId, partition_id: PartitionId) -> bool:
    """Return whether nothing is known against it; what a node has taken is known only if tools can
    ask it."""
    report = facts.storages[node]
    if report.trouble is not None:
        return False
    return report.admin_trouble is not None or report.usable.get(partition_id, False)


def recovery(facts: Facts) -> Iterator[tuple[str, Collection[PartitionId]]]:
    """All replicas take part in the store session, and hold every commit (TL-57)."""
    for number in facts.partition_ids:
        metadata = facts.metadata.partitions.get(number)
        if metadata is None:
            yield "no server has ever opened a store session", (number,)
            continue
        for view in facts.replicas(number):
            if view.is_fault:
                yield f"storage node {view.replica_id} {view.text}", (number,)
            elif not view.is_current:
                yield Unknown(f"storage node {view.replica_id}: {view.text}"), (number,)
        replicas = facts.metadata.placement.holding(number)
        if leaving := [node for node in metadata.current_replicas if node not in replicas]:
            yield (
                f"the store session still counts on {', '.join(leaving)}, not assigned any more",
                (number,),
            )


def health(facts: Facts) -> Iterator[tuple[str, Collection[PartitionId]]]:
    """Every partition's server takes appends for it (TL-58)."""
    alive = facts.metadata.membership.descriptors
    if orphans := [number for number in facts.partition_ids if facts.owner(number) not in alive]:
        yield "no server runs that could take appends for them", orphans
    for server_id, answers in sorted(facts.servers.items()):
        address = facts.address(server_id)
        owned = sorted(facts.owned(server_id))
        if answers.health is None:
            if owned:
                yield Unknown(f"server {address} does not answer"), owned
            continue
        found = answers.health
        ill = [number for number in owned if not found.get(number, False)]
        if ill:
            yield f"server {address} takes no appends for them", ill
        if answers.reports is None:
            if well := [number for number in owned if number not in ill]:
                silence = answers.silence or "it does not report that"
                text = f"it is not known whether server {address} can commit appends: {silence}"
                yield Unknown(text), well
            continue
        for number in owned:
            report = answers.reports.get(number)
            if number in ill or (report is not None and report.writable == 1):
                continue
            if report is None:
                yield Unknown(f"server {address} does not report on them"), (number,)
            elif report.writable == 0:
                yield f"server {address} takes no appends: {report.reason}", (number,)
            else:
                text = (
                    f"it is not known whether server {address} can commit appends: {report.reason}"
                )
                yield Unknown(text), (number,)


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
class ClusterVerdict:
    """The partitions that were judged, and every fault that was found."""

    partition_ids: tuple[PartitionId, ...]
    faults: tuple[Fault, ...]

    @property
    def is_well(self) -> bool | None:
        """Return whether all is well; None if no fault is known, and not everything could be
        asked."""
        if any(fault.is_known for fault in self.faults):
            return False
        return None if self.faults else True

    @property
    def has_passed(self) -> bool:
        return self.is_well is True

    @property
    def failed_partitions(self) -> tuple[PartitionId, ...]:
        return self._concerned(is_known=True)

    @property
    def unconfirmed_partitions(self) -> tuple[PartitionId, ...]:
        """Return the partitions without a known fault of which not everything could be
        confirmed."""
        failed = self.failed_partitions
        return tuple(each for each in self._concerned(is_known=False) if each not in failed)

    def _concerned(self, *, is_known: bool) -> tuple[PartitionId, ...]:
        numbers = {
            number
            for fault in self.faults
            if fault.is_known is is_known
            for number in fault.partition_ids
        }
        return tuple(number for number in self.partition_ids if number in numbers)

    def failed(self, check: str) -> tuple[Fault, ...]:
        """Return the known faults of a check."""
        return self._found(check, is_known=True)

    def unknown(self, check: str) -> tuple[Fault, ...]:
        """Return what a check could not learn."""
        return self._found(check, is_known=False)

    def result(self, check: str) -> str:
        """Return `passed`, `FAILED` or `unknown`."""
        if self.failed(check):
            return "FAILED"
        return "unknown" if self.unknown(check) else "passed"

    def _found(self, check: str, *, is_known: bool) -> tuple[Fault, ...]:
        return tuple(
            fault for fault in self.faults if fault.check == check and fault.is_known is is_known
        )


def verdict(facts: Facts, partition_ids: Collection[PartitionId] | None = None) -> ClusterVerdict:
    """Judge everything; with `partition_ids` only what concerns one of these partitions."""
    wanted = facts.partition_ids if partition_ids is None else sorted({*partition_ids})
    concerned: dict[tuple[str, str], set[PartitionId]] = {}
    for name, check in CHECKS.items():
        for text, numbers in check(facts):
            judged = {*numbers} & {*wanted}
            if judged or partition_ids is None:
                concerned.setdefault((name, text), set()).update(judged)
    faults = [
        Fault(name, text, tuple(sorted(numbers)), not isinstance(text, Unknown))
        for (name, text), numbers in concerned.items()
    ]
    return ClusterVerdict(tuple(wanted), tuple(faults))
