"""The store sessions of partitions, for commands that take a replica away: what can be counted on.

A server replaces a partition's session when a storage node comes back. While the next session opens
nobody can say which replicas it will have: the metadata has none of it yet, and the server has just
begun to ask. Such a command waits for the session, for a bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import click

from waltz.cli.cluster_list import read_sessions
from waltz.cli.server_answers import ServerAnswers, ask_owners, lost_replicas
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.errors import ConfigurationError, UnavailableError
from waltz.host import Host
from waltz.types import NO_SESSION, PartitionId, ReplicaId
from waltz.wire.report_protocol import PartitionReport, Standing

SESSION_OPENING_SECONDS_MAX: Final = 10.0
"""A command that has to know which replicas take part waits this long for a store session to open,
and then ends with an error: which ones take part is unknown."""

LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class OpenSessions:
    """`sessions` without the partitions that never had a session; `lost` as `lost_replicas`."""

    sessions: Mapping[PartitionId, PartitionMetadata]
    lost: Mapping[PartitionId, frozenset[ReplicaId]]


Check: TypeAlias = Callable[
    [Mapping[PartitionId, PartitionMetadata], Mapping[PartitionId, frozenset[ReplicaId]]], None
]
"""It is called with the `sessions` and `lost` of `OpenSessions`, and raises ConfigurationError."""


async def read_open_sessions(
    host: Host,
    root: str,
    partition_ids: Sequence[PartitionId],
    check: Check = lambda sessions, lost: None,
) -> OpenSessions:
    """Return the sessions of the partitions once all are open and `check` has nothing against them.

    What `check` raises may change while a replica is on its way into its session: it is raised once
    none is, or the time is up. Raises UnavailableError: a session is not open within
    SESSION_OPENING_SECONDS_MAX. NoNodeError: there is no cluster. CoordinatorLostError.
    """
    deadline = host.clock.now() + SESSION_OPENING_SECONDS_MAX
    is_told = False
    while True:
        answers, owners = await ask_owners(host, root)
        # Read after the servers' answers: a replica is in the metadata before it takes part.
        sessions = await read_sessions(host, root, tuple(partition_ids))
        is_late = host.clock.now() >= deadline
        opening = opening_sessions(sessions, owners)
        if opening:
            number, reason = min(opening.items())
            if is_late:
                raise UnavailableError(
                    f"which replicas of partition {number} can be counted on is unknown: {reason}."
                    " Try again when the store session is open (waltz status), or give --force"
                )
            reason = f"partition {number}: {reason}"
        else:
            found = OpenSessions(sessions, lost_replicas(partition_ids, owners, answers))
            try:
                check(found.sessions, found.lost)
            except ConfigurationError as error:
                if is_late or not _is_awaited(sessions, owners):
                    raise
                reason = str(error)
            else:
                return found
        if not is_told:
            text = f"{reason}; waits at most {SESSION_OPENING_SECONDS_MAX:g} s for store sessions"
            click.echo(text, err=True)
            is_told = True
        await asyncio.sleep(LOOK_SECONDS)


def _is_awaited(
    sessions: Mapping[PartitionId, PartitionMetadata], owners: Mapping[PartitionId, ServerAnswers]
) -> bool:
    """Return whether a replica of one of the partitions is on its way into the session."""
    reports = [
        (owners[number].reports or {}).get(number) for number in sessions if number in owners
    ]
    return any(
        each.standing == Standing.RECOVERING
        for report in reports
        if report is not None
        for each in report.replicas
    )


def opening_sessions(
    sessions: Mapping[PartitionId, PartitionMetadata], owners: Mapping[PartitionId, ServerAnswers]
) -> Mapping[PartitionId, str]:
    """Return the partitions whose store session is not open, with the reason.

    owners  the answers of each partition's server. Without its report the metadata decides.
    """
    reasons = {
        number: _why_not_open(metadata, owners.get(number), number)
        for number, metadata in sessions.items()
    }
    return {number: reason for number, reason in reasons.items() if reason is not None}


def _why_not_open(
    metadata: PartitionMetadata, owner: ServerAnswers | None, number: PartitionId
) -> str | None:
    if owner is not None and owner.reports is not None:
        report = owner.reports.get(number)
        if report is None:
            return "its server has not opened a store session yet"
        if not _has_opened(report):
            return report.reason or f"store session {report.session_id} is not open yet"
        if report.session_id != metadata.session_id:
            return f"store session {metadata.session_id} is not open yet"
    elif metadata.session_id != NO_SESSION and not metadata.current_replicas:
        return f"store session {metadata.session_id} is not open yet"
    return None


def _has_opened(report: PartitionReport) -> bool:
    """Return whether the session is open: a replica is let in when a majority has recovered."""
    away = (Standing.RECOVERING, Standing.ABSENT)
    return any(each.standing not in away for each in report.replicas)
