"""What a story can say about how things are: one method for each state of `language.py`.

Owns what each state means. It returns None if it is so, and else what is instead, in words. Raises
WaltzError where that cannot be said now. Looks at what people have of the product: clients, the log
as readers get it, disks, and what the coordinator holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.scenarios.language import Range
from tests.scenarios.stage import Stage
from waltz.cluster.partition_metadata import ReplicaState
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.replica_assignments import ReplicaAssignments
from waltz.cluster.server_assignment import PartitionAssignment, ServerDescriptor
from waltz.sim.applications.application import Intent
from waltz.sim.judges.history import ContextVerdict, SubmittedContext
from waltz.sim.judges.replicas import ReplicaDisk
from waltz.sim.simulated_cluster import machine_of, replica_id_of
from waltz.types import PartitionId, TransactionId


class States:
    """The states of one run."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    # States of storage

    async def log_is(self, partition_id: PartitionId, *expected: Range) -> str | None:
        records = await self._stage.read(partition_id)
        found = Range(0, len(records) - 1)
        return None if found in expected else f"it is {found}"

    log_is_one_of = log_is

    async def holds(self, partition_id: PartitionId, name: str, expected: Range) -> str | None:
        replica = self._replica(name)
        found = Range(0, len(replica.records.get(partition_id, ())) - 1)
        return None if found == expected else f"it holds {found}"

    async def low_water_marks_at_end(self, partition_id: PartitionId) -> str | None:
        for name in self._assigned(partition_id):
            replica = self._replica(name)
            end = len(replica.records.get(partition_id, ())) - 1
            marks = replica.marks.get(partition_id)
            if marks is None or marks.low_water_mark != end:
                return f"{name} holds 0 to {end} and has marks {marks}"
        return None

    async def replicas_equal(self, partition_id: PartitionId) -> str | None:
        log = await self._stage.read(partition_id)
        for name in self._assigned(partition_id):
            if (found := self._replica(name).records.get(partition_id, [])) != log:
                return f"{name} holds {len(found)} transactions, the log has {len(log)}"
        return None

    def _replica(self, name: str) -> ReplicaDisk:
        return self._stage.cluster.replicas(durable=True)[name]

    # States of metadata

    async def replicas_are(self, partition_id: PartitionId, expected: Sequence[str]) -> str | None:
        found = sorted(map(machine_of, self._stage.metadata(partition_id).replica_states))
        return None if found == sorted(expected) else f"they are {', '.join(found)}"

    async def takes_part(self, partition_id: PartitionId, name: str) -> str | None:
        metadata = self._stage.metadata(partition_id)
        found = metadata.replica_states.get(replica_id_of(name))
        return None if found == ReplicaState(metadata.session_id, None) else f"it is {found}"

    async def is_closed_at(self, partition_id: PartitionId, name: str, mark: int) -> str | None:
        found = self._stage.metadata(partition_id).replica_states.get(replica_id_of(name))
        is_so = found is not None and found.closing_high_water_mark == mark
        return None if is_so else f"it is {found}"

    async def session_is(self, partition_id: PartitionId, expected: int) -> str | None:
        found = self._stage.metadata(partition_id).session_id
        return None if found == expected else f"it is {found}"

    async def session_is_noted(self, partition_id: PartitionId) -> str | None:
        found, noted = (
            self._stage.metadata(partition_id).session_id,
            self._stage.noted[partition_id],
        )
        return None if found == noted else f"{noted} was noted, it is {found}"

    async def session_is_later(self, partition_id: PartitionId) -> str | None:
        found, noted = (
            self._stage.metadata(partition_id).session_id,
            self._stage.noted[partition_id],
        )
        return None if found > noted else f"{noted} was noted, it is {found}"

    async def generation_is(self, partition_id: PartitionId, expected: int) -> str | None:
        found = self._stage.metadata(partition_id).generation
        return None if found == expected else f"it is {found}"

    async def serves(self, partition_id: PartitionId, name: str, count: int) -> str | None:
        tree, path = self._stage.sites.coordinator.tree, ClusterPaths().server_descriptors
        assignment = PartitionAssignment.decode(tree.read(path).data or b"")
        found = 0
        for child in tree.children(path):
            descriptor = ServerDescriptor.decode(tree.read(f"{path}/{child}").data or b"")
            if descriptor.address.host == name:
                found = len(assignment.servers.get(descriptor.server_id, {}))
        return None if found == count else f"it serves {found}"

    def _assigned(self, partition_id: PartitionId) -> list[str]:
        node = self._stage.sites.coordinator.tree.read(ClusterPaths().replica_assignments)
        assignments = ReplicaAssignments.decode(node.data or b"")
        return [machine_of(replica_id) for replica_id in assignments.replicas(partition_id)]

    # States of clients

    async def has_applied(
        self, partition_id: PartitionId, name: str, expected: Range
    ) -> str | None:
        feed = self._stage.history.feed(name, partition_id)
        found = [fed.transaction_id for fed in feed]
        is_so = found == list(range(expected.first, expected.last + 1))
        return None if is_so else f"it has applied {found}"

    async def all_committed(self, partition_id: PartitionId, name: str) -> str | None:
        return _unless(self._of(name, partition_id), ContextVerdict.COMMITTED)

    async def some_undecided(self, partition_id: PartitionId, count: int, name: str) -> str | None:
        found = [each for each in self._of(name, partition_id) if not each.endings]
        return None if len(found) == count else f"{len(found)} are"

    async def is_committed(self, partition_id: PartitionId, what: str, name: str) -> str | None:
        return _unless([self._named(name, what).submission], ContextVerdict.COMMITTED)

    async def is_expired(self, partition_id: PartitionId, what: str, name: str) -> str | None:
        return _unless([self._named(name, what).submission], ContextVerdict.EXPIRED)

    async def is_undecided(self, partition_id: PartitionId, what: str, name: str) -> str | None:
        endings = self._named(name, what).submission.endings
        return f"it ended with {endings}" if endings else None

    async def is_transaction(
        self, partition_id: PartitionId, what: str, name: str, transaction_id: int
    ) -> str | None:
        records = await self._stage.read(partition_id)
        written = self._named(name, what).submission.written
        found = [fed.transaction_id for fed in records if (fed.header, fed.data) in written]
        return None if found == [transaction_id] else f"it is at {found}"

    async def was_told(
        self, partition_id: PartitionId, what: str, name: str, text: str
    ) -> str | None:
        endings = self._named(name, what).submission.endings
        is_so = len(endings) == 1 and text in endings[0].text
        return None if is_so else f"it was told {endings}"

    async def was_refused(
        self, partition_id: PartitionId, what: str, name: str, transaction_id: int
    ) -> str | None:
        found = [each.estimate for each in self._named(name, what).submission.refusals]
        return None if found == [transaction_id] else f"it was refused for {found}"

    async def was_never_refused(
        self, partition_id: PartitionId, what: str, name: str
    ) -> str | None:
        found = self._named(name, what).submission.refusals
        return f"it was refused: {found}" if found else None

    async def was_executed(
        self, partition_id: PartitionId, what: str, name: str, times: int
    ) -> str | None:
        found = len(self._named(name, what).submission.written)
        return None if found == times else f"it was executed {found} times"

    async def has_failed_to_apply(
        self, partition_id: PartitionId, name: str, times: int, transaction_id: int
    ) -> str | None:
        failures = self._stage.clients[name].application.failures
        found = failures.get((partition_id, TransactionId(transaction_id)), 0)
        return None if found == times else f"it has failed {found} times"

    def _named(self, name: str, what: str) -> Intent:
        return self._stage.clients[name].named[what]

    def _of(self, name: str, partition_id: PartitionId) -> list[SubmittedContext]:
        found = [intent.submission for intent in self._stage.clients[name].intents]
        return [each for each in found if each.partition_id == partition_id]


def _unless(submissions: Sequence[SubmittedContext], verdict: ContextVerdict) -> str | None:
    """What is instead of all having ended so, once."""
    others = [
        str([ending.verdict.name for ending in each.endings] or "undecided")
        for each in submissions
        if [ending.verdict for ending in each.endings] != [verdict]
    ]
    return ", ".join(others) or None
