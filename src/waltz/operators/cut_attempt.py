"""One attempt at a cut, by value: what servers and the coordinator said, and whether it is a cut.

Owns the rule. The order of the questions, which the proof of the rule rests on, is that of
`cuts_shell.py`: all holds are answered before the assignment is read, and that is read before the
first release (docs/decisions/0043-cuts.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from waltz.cluster.server_assignment import PartitionAssignment
from waltz.log_fields import printable
from waltz.types import Address, Generation, PartitionId, ServerId, TransactionId
from waltz.wire.cut_protocol import HeldPartition, HoldAnswer, HoldName, HoldReleaseAnswer


@dataclass(slots=True)
class CutAttempt:
    """Answers as they come. `obstacles` says why this is no cut, in the order in which that became
    known; with one there is nothing to wait for."""

    obstacles: list[str] = field(default_factory=list)
    _names: dict[Address, tuple[HoldName, ...]] = field(default_factory=dict)
    _held: dict[PartitionId, tuple[Address, HeldPartition]] = field(default_factory=dict)
    _unbroken: set[tuple[Address, HoldName]] = field(default_factory=set)

    def note_held(self, server: Address, answer: HoldAnswer) -> None:
        """A server has answered that it holds its partitions."""
        if answer.refusal is not None:
            self.obstacles.append(f"server {server} refuses: {printable(answer.refusal)}")
        for trouble in answer.not_held:
            reason = printable(trouble.reason)
            self.obstacles.append(
                f"partition {trouble.partition_id} is not held by {server}: {reason}"
            )
        self._names[server] = tuple(HoldName(each[0], each.hold_id) for each in answer.held)
        for held in answer.held:
            other = self._held.get(held.partition_id)
            if other is None or other[1].generation < held.generation:
                self._held[held.partition_id] = server, held

    def note_failure(self, server: Address, reason: str) -> None:
        """A server has not answered, or cannot."""
        self.obstacles.append(f"server {server}: {printable(reason)}")

    def note_assignment(self, assignment: PartitionAssignment) -> None:
        """Every server has answered, and none was released yet; this is the newest assignment."""
        assigned: dict[PartitionId, tuple[ServerId, Generation]] = {
            partition_id: (server_id, generation)
            for server_id, partitions in assignment.servers.items()
            for partition_id, generation in partitions.items()
        }
        if not assigned:
            self.obstacles.append("no partition has a server yet")
        for number in range(assignment.partition_count):
            partition_id = PartitionId(number)
            if partition_id not in assigned:
                self.obstacles.append(f"partition {partition_id} has no server now")
                continue
            held = self._held.get(partition_id)
            if held is None:
                self.obstacles.append(f"partition {partition_id} is not held by any server")
                continue
            _, generation = assigned[partition_id]
            if held[1].generation != generation:
                self.obstacles.append(
                    f"partition {partition_id} has moved: it is at generation {generation}, and"
                    f" {held[0]} holds it at generation {held[1].generation}"
                )
        self._held = {each: held for each, held in self._held.items() if each in assigned}

    def note_released(self, server: Address, answer: HoldReleaseAnswer) -> None:
        """A server has answered whether its holds were in force until now."""
        self._unbroken |= {(server, name) for name in answer.unbroken}
        for trouble in answer.broken:
            self.obstacles.append(
                f"the hold of partition {trouble.partition_id} on {server} was broken:"
                f" {printable(trouble.reason)}"
            )

    def holds_of(self, server: Address) -> tuple[HoldName, ...]:
        """Return the holds of a server, which are to be released."""
        return self._names.get(server, ())

    def marks(self) -> Mapping[PartitionId, TransactionId] | None:
        """Return the mark of each partition, once all servers have answered; None: it is no cut."""
        for partition_id, (server, held) in self._held.items():
            if (server, HoldName(partition_id, held.hold_id)) not in self._unbroken:
                if not self.obstacles:
                    self.obstacles.append(
                        f"{server} has not said whether it held partition {partition_id}"
                    )
                return None
        if self.obstacles:
            return None
        return {each: held.high_water_mark for each, (_, held) in sorted(self._held.items())}
