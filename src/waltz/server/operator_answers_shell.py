"""Answers to the questions of people and tools about one server.

Owns the look at all clients, which those who ask at the same time share. Must not know how
questions come and answers leave, and changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final

from waltz.host import Clock
from waltz.limits import REPORTS_MAX
from waltz.server.clients.clients_shell import Clients
from waltz.server.clients.mounted_clients import (
    AppliedByClients,
    ClientsLook,
    Looking,
    told_lag,
)
from waltz.server.coordinator_watch_shell import CoordinatorWatch
from waltz.server.feeding.outbox import Part
from waltz.server.refusal_reports import told_refusals
from waltz.server.running_partitions_shell import RunningPartitions
from waltz.server.server_metrics import milliseconds, told_durations, told_problems, told_reports
from waltz.wire.clients_protocol import ClientsRequest, MarkLag
from waltz.wire.discovery_protocol import PartitionProblems, PartitionProblemsRequest
from waltz.wire.message import Message
from waltz.wire.report_protocol import (
    CoordinatorLocation,
    CoordinatorRequest,
    DurationsRequest,
    HotLocksRequest,
    PartitionReports,
    PartitionReportsRequest,
    RefusalsRequest,
)

OPERATORS_QUESTIONS: Final = (
    PartitionProblemsRequest,
    PartitionReportsRequest,
    RefusalsRequest,
    HotLocksRequest,
    DurationsRequest,
    ClientsRequest,
    CoordinatorRequest,
)
"""Questions of people and tools about this server."""


class OperatorAnswers:
    """See the module."""

    def __init__(
        self,
        clock: Clock,
        clients: Clients,
        applied: AppliedByClients,
        partitions: RunningPartitions,
        coordinator: CoordinatorWatch,
        *,
        watches_coordinator: bool,
        coordinator_location: str | None,
    ) -> None:
        self._clock = clock
        self._clients = clients
        self._applied = applied
        self._partitions = partitions
        self._coordinator = coordinator
        self._watches_coordinator = watches_coordinator
        self._coordinator_location = coordinator_location
        self._look: ClientsLook | None = None
        self._looking = asyncio.Lock()

    async def answer(self, message: Message) -> Part:
        """Answer a question of people and tools."""
        if isinstance(message, PartitionProblemsRequest):
            problems = told_problems(self._partitions.states())
            return PartitionProblems(message.request_number, problems)
        if isinstance(message, PartitionReportsRequest):
            return await self._reports(message)
        if isinstance(message, RefusalsRequest | HotLocksRequest):
            refusals = self._partitions.refusals(message.partition_id)
            return told_refusals(message, refusals, self._clock.now())
        if isinstance(message, DurationsRequest):
            return told_durations(message, self._partitions.durations(message.partition_id))
        if isinstance(message, ClientsRequest):
            look, now = await self._look_at_clients(), self._clock.now()
            return look.answer(message, self._lags(message, now), now)
        assert isinstance(message, CoordinatorRequest)
        return CoordinatorLocation(message.request_number, self._coordinator_location)

    async def _reports(self, request: PartitionReportsRequest) -> PartitionReports:
        """Ask the replicas of the partitions that are wanted and this server's."""
        assigned = self._partitions.assigned
        wanted = [each for each in dict.fromkeys(request.partition_ids) if each in assigned]
        wanted = wanted[:REPORTS_MAX]
        found = await asyncio.gather(
            *[self._partitions.look(partition_id) for partition_id in wanted]
        )
        contact = self._coordinator.contact()
        return PartitionReports(
            request.request_number,
            milliseconds(contact.age_seconds),
            contact.problem() if self._watches_coordinator else None,
            told_reports(found),
        )

    async def _look_at_clients(self) -> ClientsLook:
        """Return a look at all clients, made now or just before."""
        clock = self._clock
        async with self._looking:  # those who ask meanwhile get the same look
            if self._look is None or not self._look.is_fresh(clock.now()):
                looking = Looking(self._applied, clock.now())
                for _, partition in sorted(self._partitions.running.items()):
                    for _ in looking.take(partition.machine.facts(clock.now()), clock.now()):
                        await asyncio.sleep(0)
                self._look = looking.end(self._clients.facts, clock.now())
            return self._look

    def _lags(self, request: ClientsRequest, now: float) -> tuple[MarkLag, ...]:
        """Return the lag of the marks that are asked for, of partitions that run here."""
        running = self._partitions.running
        return tuple(
            MarkLag(
                mark.partition_id,
                mark.transaction_id,
                *told_lag(running[mark.partition_id].machine.lag_of(mark.transaction_id, now)),
            )
            for mark in request.marks
            if mark.partition_id in running
        )
