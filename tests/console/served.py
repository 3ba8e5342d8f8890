"""The console's application over answers that are made up: for tests, and for a look at its pages.

python -m tests.console.served 8123
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.console.details import (
    absent,
    durations_told,
    hottest_told,
    life,
    locks_told,
    sessions_told,
    sinks_told,
)
from tests.console.states import (
    cluster,
    entry,
    full_node,
    node_id,
    partition_report,
    with_node,
    with_nodes_gone,
    with_reports,
)
from waltz.cli.cluster_list import ClusterMetadata
from waltz.cli.storage_questions import StorageReport
from waltz.console.answers import ClusterAnswers, ConsumersTold, ServerTold
from waltz.console.inquiries import (
    DurationsOf,
    HottestLocksOf,
    Inquiry,
    LifeOf,
    LocksOf,
    PipelinesOf,
    PipelinesTold,
    PipelineTold,
    PlaceOf,
    PlaceTold,
    RequestOf,
    RequestTold,
    SessionsOf,
    SinksOf,
)
from waltz.console.inquiries_shell import Inquiries
from waltz.console.poller_shell import ClusterPoller
from waltz.console.tail_sample import Range, Row
from waltz.console.transaction_life import life_of
from waltz.console.web_shell import Console
from waltz.errors import NotFoundError, UnavailableError
from waltz.system.clock import RealClock
from waltz.system.http import HttpBounds, HttpServer
from waltz.types import (
    Address,
    ClientId,
    Generation,
    PartitionId,
    ReplicaId,
    RequestId,
    TransactionId,
)
from waltz.wire.report_protocol import Standing

LOG_END = 10_000_000


class MadeUpCluster:
    """Answers every question from `answers`; marks grow by `step` with each question. `asked`
    counts the questions by the kind of process."""

    def __init__(self, answers: ClusterAnswers, step: int = 0) -> None:
        self.answers = answers
        self.step = step
        self.asked = {"coordinator": 0, "server": 0, "node": 0}
        self.inquired: list[Inquiry] = []
        self.told: dict[Inquiry | type, Any] = {}
        """Answers to inquiries, by question or by kind; an error is raised."""
        self._grown = 0

    async def coordinator(self) -> ClusterMetadata:
        self.asked["coordinator"] += 1
        told = self.answers.coordinator
        if told.answer is None or told.trouble is not None:
            raise UnavailableError(told.trouble or "no answer")
        return told.answer

    async def server(self, address: Address, owned: Sequence[PartitionId]) -> ServerTold:
        self.asked["server"] += 1
        told = self.answers.servers[address]
        if told.answer is None or told.trouble is not None:
            raise UnavailableError(told.trouble or "no answer")
        if told.answer.reports is None:
            return told.answer
        self._grown += self.step
        reports = {
            number: replace(
                report,
                high_water_mark=None
                if report.high_water_mark is None
                else TransactionId(report.high_water_mark + self._grown * (number % 7 + 1)),
            )
            for number, report in told.answer.reports.reports.items()
        }
        return replace(told.answer, reports=replace(told.answer.reports, reports=reports))

    async def node(self, node: ReplicaId, metadata: ClusterMetadata) -> StorageReport:
        self.asked["node"] += 1
        told = self.answers.nodes[node]
        if told.answer is None or told.trouble is not None:
            raise UnavailableError(told.trouble or "no answer")
        return told.answer.report

    async def consumers(self) -> ConsumersTold | None:
        told = self.answers.consumers
        return None if told is None else told.answer

    async def ask(self, question: Inquiry) -> Any:
        self.inquired.append(question)
        for key in (question, type(question)):
            if key in self.told:
                found = self.told[key]
                if isinstance(found, Exception):
                    raise found
                return found
        return made_up(question)


def made_up(question: Inquiry) -> Any:
    """Return a plausible answer."""
    match question:
        case LocksOf():
            return locks_told()
        case HottestLocksOf(partition_count):
            return hottest_told(partition_count)
        case DurationsOf():
            return durations_told()
        case SessionsOf():
            return sessions_told()
        case LifeOf(partition_id, transaction_id):
            if transaction_id >= LOG_END:
                return life_of(absent(partition_id, transaction_id))
            return life(partition_id, transaction_id)
        case PlaceOf():
            return PlaceTold(17, 23)
        case RequestOf():
            return RequestTold(17, 0, 41, None)
        case SinksOf():
            return sinks_told()
        case PipelinesOf():
            return PipelinesTold(
                (
                    PipelineTold("archive.yaml", "archive", "/srv/archive", ((0, 30, 42),)),
                    PipelineTold("tables.yaml", "", "", problem="there is no target"),
                )
            )


class MadeUpLog:
    """Has every transaction up to 10 million, with the same data; counts the reads."""

    def __init__(self, data: bytes = b"a transaction") -> None:
        self.data = data
        self.rows_read = 0

    async def read(self, wanted: Range, *, with_data: bool) -> list[Row]:
        if wanted.end > LOG_END:
            raise NotFoundError(f"the log ends before transaction {wanted.end}")
        self.rows_read += wanted.end - wanted.first
        return [
            Row(
                wanted.partition_id, number, -7,
                RequestId(ClientId(12), Generation(3), wanted.partition_id, number % 2**31),
                self.data if with_data else None,
            )
            for number in range(wanted.first, wanted.end)
        ]  # fmt: skip


def console(made_up: MadeUpCluster, log: MadeUpLog | None = None) -> tuple[Console, ClusterPoller]:
    """Return the console over a made-up cluster; close both in the loop that runs them."""
    clock = RealClock()
    poller = ClusterPoller(clock, made_up, made_up.answers.names)
    inquiries = Inquiries(clock, made_up.ask)
    return Console(poller, log or MadeUpLog(), inquiries, "127.0.0.1"), poller


def large() -> ClusterAnswers:
    """Return 4 servers, 100 partitions with 5 replicas each, and 20 nodes: two are dead, one has a
    full disk, and a partition takes no appends."""
    answers = cluster(partitions=100, nodes=20, servers=4, replicas=5)
    metadata = answers.coordinator.answer
    assert metadata is not None
    worse = {3: Standing.ABSENT, 11: Standing.SILENT, 7: Standing.REFUSING}
    of_node = {node_id(index): standing for index, standing in worse.items()}
    for server in range(4):
        reports = {}
        for number in range(server, 100, 4):
            entries = [
                entry(
                    node, Standing.BEHIND if number == 50 else of_node.get(node, Standing.CURRENT)
                )
                for node in metadata.placement.holding(PartitionId(number))
            ]
            takes = sum(each.takes_appends == 1 for each in entries) >= 3
            reports[number] = partition_report(
                number, entries, writable=int(takes), reason=None if takes else "no majority",
                mark=1_234_567 * (number + 1) % 9_999_991,
            )  # fmt: skip
        answers = with_reports(answers, reports, server)
    return with_node(
        with_nodes_gone(answers, 3, 11), 7, full_node(metadata.placement.partitions[node_id(7)])
    )


async def serve(port: int) -> None:
    shown, poller = console(MadeUpCluster(large(), step=40))
    server = HttpServer(shown.application(), HttpBounds(512, 60.0))
    await server.start(Address("127.0.0.1", port))
    print(f"http://{server.address}/")
    try:
        await asyncio.Event().wait()
    finally:
        await shown.stop()
        await poller.stop()
        await server.stop()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]) if sys.argv[1:] else 0))
