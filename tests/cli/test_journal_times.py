"""The times of printed transactions, as several nodes tell them."""

from __future__ import annotations

import asyncio
import json

from tests.cli.test_tail import RUN
from tests.operators.test_journals_shell import P0, append_slowly, t
from tests.server.test_server_shell import STORAGES, World, play
from waltz import TransactionId
from waltz.cli.journal_times import ACCESS_SECONDS_MAX, JournalTimes, RunTimes
from waltz.cli.tail import Style, TimeBounds
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.host import Host
from waltz.operators.journals_shell import JournalAnswer
from waltz.operators.replicas_shell import Replica
from waltz.types import PartitionId, ReplicaId
from waltz.wire.journal_entries import DurableTime
from waltz.wire.journal_facts import JournalFacts


def told_by(name: str, first: int, low: int, high: int) -> tuple[JournalAnswer, ...]:
    """A node's answer: the transactions from `first` to 7 became durable between these times."""
    times = (DurableTime(TransactionId(first - 1), low, 0), DurableTime(TransactionId(7), high, 0))
    replica = Replica(PartitionId(3), ReplicaId(name), 2, True, None)
    end = TransactionId(8)
    return (JournalAnswer(replica, TransactionId(first), end, JournalFacts(times)),)


def test_a_line_has_the_times_of_a_majority_before_the_data() -> None:
    times = RunTimes((told_by("a:1", 7, 1_000, 2_000), (), told_by("c:1", 7, 1_500, 1_700)))
    plain = Style(as_json=False, shows_partition=False, shows_request_id=False)
    first, second, _ = plain.lines(3, RUN, times).split("\n")
    assert first == "7\t0\t1970-01-01T00:00:01.000Z to 1970-01-01T00:00:02.000Z\ttö"
    assert second.startswith("8\t-3\tnot recorded\t")
    shown = Style(as_json=True, shows_partition=True, shows_request_id=False)
    first, second, _ = plain.lines(3, RUN, RunTimes(())).split("\n")
    assert first == "7\t0\tnot recorded\ttö"
    values = [json.loads(line) for line in shown.lines(3, RUN, times).splitlines()]
    assert [(each["not_before"], each["not_after"]) for each in values] == [
        ("1970-01-01T00:00:01.000Z", "1970-01-01T00:00:02.000Z"),
        (None, None),
    ]


def test_times_are_told_part_after_part_while_a_majority_tells() -> None:
    async def scene(world: World, host: Host) -> None:
        await append_slowly(host, 3)
        times = JournalTimes(host, DEFAULT_ROOT)
        told = await times.of_run(P0, 0, 3)
        bounds = [told.bounds(number) for number in range(4)]
        assert None not in [each.not_after for each in bounds[:3]]
        assert bounds[3] == TimeBounds(None, None)
        for name in STORAGES[:2]:
            world.sites.kill(world.sites.site(name))
        await asyncio.sleep(ACCESS_SECONDS_MAX + 1)
        told = await times.of_run(P0, 0, 3)
        assert told.bounds(t(0)) == TimeBounds(None, None)
        await times.close()

    play(scene, seeds=1)
