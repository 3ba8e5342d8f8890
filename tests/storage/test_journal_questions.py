"""A node's journal over its two ports: who may write into it, and what is answered."""

from __future__ import annotations

import asyncio
from zlib import crc32

import pytest

from tests.storage.simulated_node import P0, PeerOfNode, World, append, run_node
from tests.storage.support import DIRECTORY, fresh_disk, t
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.types import ClientId, PartitionId, SessionId
from waltz.wire.admin_protocol import JournalRequest, JournalResponse
from waltz.wire.journal_entries import JournalEntry, decode_entries
from waltz.wire.journal_facts import JournalFacts
from waltz.wire.storage_protocol import (
    ClientNote,
    NoteClientsRequest,
    SetLowWaterMarkRequest,
    TruncateRequest,
)

NOTE = ClientNote(ClientId(7), "orders", "cn=orders", "10.0.0.7:1", "shop 2")
JOURNAL = f"{DIRECTORY}/0/{0:019d}.jnl"


async def facts_of(admin: PeerOfNode, first: int, last: int) -> tuple[JournalFacts, int]:
    answer = await admin.ask(JournalRequest(5, P0, t(first), t(last)))
    assert isinstance(answer, JournalResponse), answer
    assert (answer.sequence_number, answer.partition_id) == (5, P0)
    return JournalFacts(decode_entries(answer.entries).entries), answer.next_transaction_id


def test_a_node_tells_when_its_records_became_durable_and_by_which_session() -> None:
    async def test(world: World) -> None:
        peer, admin = await world.data_peer(), await world.admin_peer()
        await peer.succeed(SetLowWaterMarkRequest(SessionId(3), 1, P0, t(-1), offline=False))
        for first in range(5):
            await peer.succeed(append(first, 1, session=3))
            await asyncio.sleep(0.3)
        facts, following = await facts_of(admin, 0, 99)
        assert following == 5
        for number in range(5):
            interval = facts.interval(number)
            assert interval is not None
            assert interval.not_after - interval.not_before < 1_500
            assert facts.session(number) == 3
        assert facts.interval(5) is None

    run_node(test, fresh_disk())


def test_what_waits_for_its_time_is_told_at_once() -> None:
    async def test(world: World) -> None:
        peer, admin = await world.data_peer(), await world.admin_peer()
        await peer.succeed(append(0, 1))
        await peer.succeed(append(1, 1))
        facts, _ = await facts_of(admin, 0, 1)
        assert facts.interval(1) is not None

    run_node(test, fresh_disk())


def test_when_appends_stop_the_journal_on_the_disk_is_complete_after_a_second() -> None:
    disk = fresh_disk()

    async def test(world: World) -> None:
        peer = await world.data_peer()
        await peer.succeed(append(0, 1))
        await peer.succeed(append(1, 1))
        await asyncio.sleep(1.5)
        entries = decode_on(disk)
        assert JournalFacts(entries).interval(1) is not None
        await asyncio.sleep(60.0)
        assert decode_on(disk) == entries

    run_node(test, disk)


def decode_on(disk: SimulatedDisk) -> list[JournalEntry]:
    content = disk.content(JOURNAL)
    return [*decode_entries(content, 64, crc32(content[:64])).entries]


def test_a_node_that_is_stopped_leaves_no_record_without_its_time() -> None:
    disk = fresh_disk()

    async def test(world: World) -> None:
        peer = await world.data_peer()
        await peer.succeed(append(0, 1))
        await peer.succeed(append(1, 1))

    run_node(test, disk)
    assert JournalFacts(decode_on(disk)).interval(1) is not None


def test_clients_that_a_server_tells_of_are_noted_once() -> None:
    disk = fresh_disk()

    async def test(world: World) -> None:
        peer, admin = await world.data_peer(), await world.admin_peer()
        await peer.succeed(append(0, 1))
        await peer.succeed(NoteClientsRequest(SessionId(0), 1, P0, (NOTE, NOTE)))
        await peer.succeed(NoteClientsRequest(SessionId(0), 2, P0, (NOTE,)))
        facts, _ = await facts_of(admin, 0, 0)
        (found,) = facts.notes_of(ClientId(7))
        assert found[2:] == NOTE[1:]
        await asyncio.sleep(0.1)
        assert disk.content(JOURNAL).count(b"cn=orders") == 1

    run_node(test, disk)


def test_a_session_that_is_fenced_notes_nobody() -> None:
    async def test(world: World) -> None:
        peer, admin = await world.data_peer(), await world.admin_peer()
        await peer.succeed(append(0, 1, session=4))
        refusal = await peer.refusal(NoteClientsRequest(SessionId(3), 1, P0, (NOTE,)))
        assert "session ID of partition 0 has changed to 4" in refusal
        facts, _ = await facts_of(admin, 0, 0)
        assert facts.clients == []

    run_node(test, fresh_disk())


@pytest.mark.parametrize(
    ("first", "last"), [(-5, 3), (7, 2), (-(2**63), 2**63 - 1), (2**63 - 1, 2**63 - 1), (3, 3)]
)
def test_a_question_about_what_is_not_there_is_answered_with_nothing(first: int, last: int) -> None:
    async def test(world: World) -> None:
        peer, admin = await world.data_peer(), await world.admin_peer()
        await peer.succeed(append(0, 3))
        facts, following = await facts_of(admin, first, last)
        assert following == first
        assert facts.interval(0) is None

    run_node(test, fresh_disk())


def test_a_partition_that_is_not_assigned_has_no_journal_to_ask_for() -> None:
    async def test(world: World) -> None:
        admin = await world.admin_peer()
        refusal = await admin.refusal(JournalRequest(1, PartitionId(1), t(0), t(5)))
        assert "Partition:1 is not assigned" in refusal
        refusal = await admin.refusal(JournalRequest(1, PartitionId(77), t(0), t(5)))
        assert "no partition 77" in refusal

    run_node(test, fresh_disk(), assigned_partitions=frozenset((P0,)))


def test_a_cut_is_noted_and_what_came_after_it_has_its_new_time() -> None:
    async def test(world: World) -> None:
        peer, admin = await world.data_peer(), await world.admin_peer()
        await peer.succeed(append(0, 5))
        await asyncio.sleep(3.0)
        await peer.ask(TruncateRequest(SessionId(0), 1, P0, t(1), False))
        await asyncio.sleep(3.0)
        await peer.succeed(append(2, 1, size=70))
        facts, _ = await facts_of(admin, 0, 2)
        early, late = facts.interval(1), facts.interval(2)
        assert early is not None
        assert late is not None
        assert late.not_before - early.not_before >= 3_000
        assert [cut.transaction_id for cut in facts.cuts] == [1]

    run_node(test, fresh_disk())
