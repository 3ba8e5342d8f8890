"""Compares the machines of all processes after each of their steps.

Owns what must hold between machines, which none of them can check alone: there is only one line of
commits, whichever servers believe to own a partition. What must hold within a machine is its own
`check_invariants`.
"""

from __future__ import annotations

from dataclasses import dataclass

from waltz.host import Inspectable
from waltz.server.server_partition import ServerPartition
from waltz.sim.loop import Process
from waltz.types import NOTHING, Generation, PartitionId, TransactionId


@dataclass(slots=True)
class _Reign:
    """One generation of a partition: its owner, the mark that it began with, and its mark."""

    process: Process
    first: TransactionId
    mark: TransactionId


class Overseer:
    """I3: for each ID at most one session ever obtains a quorum.

    Sessions of one generation follow each other in one process, which never lets its mark fall. Of
    two generations, the earlier one commits nothing beyond where the later one began, and the later
    one begins beyond whatever the earlier one has committed.
    """

    def __init__(self) -> None:
        self._reigns: dict[PartitionId, dict[Generation, _Reign]] = {}

    def look(self, process: Process, machine: Inspectable) -> None:
        """Check a machine after a step. Raises AssertionError."""
        if not isinstance(machine, ServerPartition) or machine.high_water_mark is None:
            return
        mark = machine.high_water_mark
        reigns = self._reigns.setdefault(machine.partition_id, {})
        reign = reigns.get(machine.generation)
        if reign is None:
            reign = reigns[machine.generation] = _Reign(process, mark, mark)
        elif reign.mark == mark and reign.process is process:
            return
        where = f"partition {machine.partition_id}, generation {machine.generation}"
        assert reign.process is process, f"I3: {where} has two owners"
        assert reign.mark <= mark, f"I10: {where} went from {reign.mark} back to {mark}"
        reign.mark = mark
        for generation, other in reigns.items():
            if generation < machine.generation:
                assert other.mark <= reign.first, (
                    f"I3: {where} began at {reign.first}; generation {generation} had committed"
                    f" {other.mark}"
                )
            elif generation > machine.generation:
                assert mark <= other.first, (
                    f"I3: {where} committed {mark}; generation {generation} had begun at"
                    f" {other.first}"
                )

    def committed(self, partition_id: PartitionId) -> TransactionId:
        """The last transaction that any server has ever known to be committed."""
        reigns = self._reigns.get(partition_id, {})
        return max((reign.mark for reign in reigns.values()), default=NOTHING)
