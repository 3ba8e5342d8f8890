"""The answers of servers about a lock: the transaction that set it, the appends that it refused.

Owns the words. Servers keep no names of locks and no list of them; they remember refusals, and a
refusal names the transaction that had set the lock then. A lock that refused nothing is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from waltz.cli.moments import age_text
from waltz.errors import UnavailableError
from waltz.types import PartitionId

if TYPE_CHECKING:
    from waltz.client.transaction import PartitionLocalLock
    from waltz.host import Host
    from waltz.wire.report_protocol import RefusalEntry, RefusalsReport

LOCK_REFUSALS_MAX: Final = 1_000
"""Refusals of a lock that are counted per partition: a server tells at most that many at once."""

PARTITIONS_AT_ONCE_MAX: Final = 16
"""Partitions whose servers are asked at once."""

SHOWN_MAX: Final = 5
"""Refusals that are printed per partition."""


@dataclass(frozen=True, slots=True)
class LockFacts:
    """A partition's answer about a lock; `trouble` is the reason if there is none."""

    partition_id: PartitionId
    report: RefusalsReport | None
    trouble: str = ""

    @property
    def newest(self) -> RefusalEntry | None:
        """The newest refusal: its winner is the last transaction that is known to have set the lock
        or, if it is an estimate, the last that may have."""
        return self.report.refusals[0] if self.report and self.report.refusals else None


async def ask_lock(
    host: Host, root: str, lock: PartitionLocalLock, partition_ids: Sequence[PartitionId]
) -> list[LockFacts]:
    """Ask the servers of these partitions. Raises ConfigurationError: there is no such partition;
    NoNodeError, CoordinatorLostError."""
    from waltz.operators.questions_shell import ask_refusals, partition_server

    turns = asyncio.Semaphore(PARTITIONS_AT_ONCE_MAX)

    async def ask(number: PartitionId) -> LockFacts:
        async with turns:
            try:
                address = await partition_server(host, root, number)
                report = await ask_refusals(
                    host, address, number, LOCK_REFUSALS_MAX, lock_hash=lock.hash
                )
            except UnavailableError as error:
                return LockFacts(number, None, str(error))
        return LockFacts(number, report)

    return list(await asyncio.gather(*map(ask, partition_ids)))


def lock_lines(lock: PartitionLocalLock, facts: LockFacts) -> list[str]:
    """Return what a partition's server knows of the lock, for people."""
    place = f"lock {lock.name}:{lock.id} in partition {facts.partition_id}"
    if facts.report is None or facts.report.kept is None:
        return [f"{place}: unknown: {facts.trouble}"]
    if facts.newest is None:
        kept = facts.report.kept
        reason = f"it is in none of the {kept.kept} refusals that the server remembers"
        return [f"{place}: unknown who set it: {reason}, and nothing else names the holder"]
    newest = facts.newest
    age = age_text(newest.age_milliseconds)
    if newest.is_exact:
        said = f"set by transaction {newest.winner} when it refused an append {age}"
    else:
        said = (
            f"when it refused an append {age}, it was set by transaction {newest.winner}, by an"
            " earlier one, or by none: other locks share its places in the server's table"
        )
    count = len(facts.report.refusals)
    appends = f"{count} append{'' if count == 1 else 's'}"
    lines = [
        f"{place}: {said}; whether it was set again since, nobody knows",
        f"refused     {appends} for this lock, as far as the server remembers",
    ]
    for each in facts.report.refusals[:SHOWN_MAX]:
        winner = f"winner {each.winner}, {'which wrote it' if each.is_exact else 'an estimate'}"
        lines.append(
            f"  {':'.join(map(str, each.request_id))}  {winner}, {age_text(each.age_milliseconds)}"
        )
    return lines


def lock_values(facts: LockFacts) -> dict[str, Any]:
    """Return what a partition's server knows of the lock, for programs."""
    newest = facts.newest
    return {
        "partition": facts.partition_id,
        "winner": None if newest is None else newest.winner,
        "exact": None if newest is None else newest.is_exact,
        "age_seconds": None if newest is None else newest.age_milliseconds / 1000,
        "problem": facts.trouble or None,
        "refused": None
        if facts.report is None
        else [
            {
                "request_id": each.request_id._asdict(),
                "winner": each.winner,
                "exact": each.is_exact,
                "age_seconds": each.age_milliseconds / 1000,
            }
            for each in facts.report.refusals
        ],
    }
