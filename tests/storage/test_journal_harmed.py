"""Journals that are lost, cut, changed, foreign or of a later release: the node opens and serves.

What it tells then is what the whole journal told, or nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from zlib import crc32

import pytest

from tests.storage.simulated_node import World, append, run_node
from tests.storage.support import DIRECTORY_ID, OTHER_KEY, fresh_disk, home, t
from tests.storage.test_journal_questions import JOURNAL, facts_of
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.journal.journal_file import JOURNAL_HEADER_BYTES, JournalPlace
from waltz.types import PartitionId
from waltz.wire.journal_entries import ENTRY_HEAD, DurableTime, encode_entries

RECORDS = 4
LATER = b"\x00\x00\x00\x01"
"""Format version 1."""

Told = list[tuple[int, int] | None]


def written() -> tuple[SimulatedDisk, Told]:
    """Return the disk of a node that has taken some records, a while apart, and was stopped; and
    the intervals that it told."""
    disk = fresh_disk()
    told: Told = []

    async def test(world: World) -> None:
        peer, admin = await world.data_peer(), await world.admin_peer()
        for number in range(RECORDS):
            await peer.succeed(append(number, 1))
            await asyncio.sleep(7.0)
        told.extend(await intervals(admin, RECORDS))

    run_node(test, disk)
    assert None not in told
    return disk, told


async def intervals(admin: object, count: int) -> Told:
    found: Told = []
    for number in range(count):
        facts, _ = await facts_of(admin, number, number)  # type: ignore[arg-type]
        interval = facts.interval(number)
        found.append(interval and (interval.not_before, interval.not_after))
    return found


def after(content: bytes | None, disk: SimulatedDisk) -> Told:
    """Return what a node tells that starts with this journal, and has taken one more record."""
    contents = disk.contents()
    contents.pop(JOURNAL)
    if content is not None:
        contents[JOURNAL] = content
    harmed = SimulatedDisk(contents=contents)
    told: Told = []

    async def test(world: World) -> None:
        peer, admin = await world.data_peer(), await world.admin_peer()
        await peer.succeed(append(RECORDS, 1))
        told.extend(await intervals(admin, RECORDS + 1))

    run_node(test, harmed)
    return told


def with_header(content: bytes, fields: bytes) -> bytes:
    """Return a journal with this header and the same entries, whose chain fits the header."""
    start = fields + crc32(fields).to_bytes(4)
    return start + entries_after(content, start)


def entries_after(content: bytes, start: bytes) -> bytes:
    position, rest, chain = JOURNAL_HEADER_BYTES, b"", crc32(start)
    while position < len(content):
        _, length = ENTRY_HEAD.unpack_from(content, position)
        body = content[position : position + ENTRY_HEAD.size + length]
        chain = crc32(body, chain)
        rest += body + chain.to_bytes(4)
        chain = crc32(chain.to_bytes(4), chain)
        position += len(body) + 4
    return rest


def foreign(
    content: bytes,
    *,
    key: bool = False,
    directory: bool = False,
    partition: int = 0,
    first: int = 0,
) -> bytes:
    key_uuid = {"key": OTHER_KEY} if key else {}
    place = JournalPlace(
        home(fresh_disk(), **key_uuid),  # type: ignore[arg-type]
        OTHER_KEY if directory else DIRECTORY_ID,
        10_000,
    )
    header = bytearray(place.header(t(first), 5)[:-4])
    header[48:52] = PartitionId(partition).to_bytes(4)
    return with_header(content, bytes(header))


def with_huge_length(content: bytes) -> bytes:
    return content + b"\x08\xff\xff" + b"\xff" * 100


def with_a_false_entry(content: bytes) -> bytes:
    """An entry that says that all was durable a year ago, behind a byte that is lost."""
    lie = encode_entries([DurableTime(t(RECORDS - 1), 1, 0)], crc32(content))
    return content[:-1] + lie


HARMS: dict[str, Callable[[bytes], bytes | None]] = {
    "lost": lambda content: None,
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "noise": lambda content: b"\xff" * 3_000_000,
    "half": lambda content: content[: len(content) // 2],
    "without its header": lambda content: content[JOURNAL_HEADER_BYTES:],
    "of another cluster": lambda content: foreign(content, key=True),
    "of another directory": lambda content: foreign(content, directory=True),
    "of another partition": lambda content: foreign(content, partition=1),
    "of another segment": lambda content: foreign(content, first=RECORDS),
    "a huge length": with_huge_length,
    "a false entry": with_a_false_entry,
    "twice": lambda content: content + content,
}


@pytest.fixture(scope="module")
def life() -> tuple[SimulatedDisk, Told]:
    return written()


def check(found: Told, whole: Told) -> None:
    for told, known in zip(found, whole, strict=False):
        assert told in (known, None), (found, whole)


@pytest.mark.parametrize("harm", HARMS)
def test_a_node_opens_and_serves_with_a_harmed_journal(
    harm: str, life: tuple[SimulatedDisk, Told]
) -> None:
    disk, whole = life
    found = after(HARMS[harm](disk.content(JOURNAL)), disk)
    check(found, whole)
    if harm not in ("half", "a huge length", "a false entry", "twice"):
        assert found[:RECORDS] == [None] * RECORDS


def test_with_a_whole_journal_all_is_told(life: tuple[SimulatedDisk, Told]) -> None:
    disk, whole = life
    assert after(disk.content(JOURNAL), disk)[:RECORDS] == whole
    same = with_header(disk.content(JOURNAL), disk.content(JOURNAL)[: JOURNAL_HEADER_BYTES - 4])
    assert same == disk.content(JOURNAL), "so the other headers are well made"


def flipped(content: bytes) -> Iterator[bytes]:
    for position in range(0, len(content), 5):
        yield content[:position] + bytes([content[position] ^ 0x40]) + content[position + 1 :]


def test_a_node_opens_and_serves_with_any_byte_of_its_journal_changed(
    life: tuple[SimulatedDisk, Told],
) -> None:
    disk, whole = life
    for content in flipped(disk.content(JOURNAL)):
        check(after(content, disk), whole)


def test_the_journal_of_a_later_release_is_left_alone_and_nothing_is_told(
    life: tuple[SimulatedDisk, Told],
) -> None:
    disk, _ = life
    content = disk.content(JOURNAL)
    header = content[:4] + LATER + content[8 : JOURNAL_HEADER_BYTES - 4]
    contents = {**disk.contents(), JOURNAL: with_header(content, header)}
    later = SimulatedDisk(contents=contents)

    async def test(world: World) -> None:
        peer = await world.data_peer()
        await peer.succeed(append(RECORDS, 1))
        await asyncio.sleep(5.0)

    run_node(test, later)
    assert later.content(JOURNAL) == contents[JOURNAL]


def test_a_directory_in_the_place_of_a_journal_stops_nobody(
    life: tuple[SimulatedDisk, Told],
) -> None:
    disk, _ = life
    contents = {**disk.contents(), JOURNAL: None}
    blocked = SimulatedDisk(contents=contents)

    async def test(world: World) -> None:
        peer = await world.data_peer()
        await peer.succeed(append(RECORDS, 1))
        await asyncio.sleep(5.0)

    run_node(test, blocked)
    assert blocked.contents()[JOURNAL] is None
