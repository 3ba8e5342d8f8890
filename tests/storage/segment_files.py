"""One segment on a simulated disk, to spoil and to open: what the tests of its recovery share."""

from __future__ import annotations

from collections.abc import Callable

from tests.storage.support import DIRECTORY, batch, fresh_disk, home, t
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.log.damage import Damage
from waltz.storage.log.segment import Segment, create_segment
from waltz.storage.log.segment_recovery import Opened, Trust, open_segment

SEG = f"{DIRECTORY}/0/{0:019d}.seg"
IDX = f"{DIRECTORY}/0/{0:019d}.idx"


def disk_with(count: int, *, first: int = 0, size: int | None = None) -> SimulatedDisk:
    """A partition directory with one closed segment of `count` records, all indexed."""
    disk = fresh_disk()
    disk.make_directory(f"{DIRECTORY}/0")
    disk.sync_directory(DIRECTORY)
    segment = create_segment(home(disk), t(first), 5)
    if count:
        segment.write(batch(first, count, size=size))
    segment.write_index()
    segment.close()
    return disk


def reopen(
    disk: SimulatedDisk,
    *,
    mark: int = -1,
    proof: bool = False,
    following: int | None = None,
    first: int = 0,
    ceiling: int | None = None,
    lose: Callable[[], None] = lambda: None,
) -> Opened:
    """Proof or not is whether our own release was the last to write the index."""
    trust = Trust(
        local_low_water_mark=t(mark),
        index_is_proof=proof,
        ceiling=None if ceiling is None else t(ceiling),
    )
    return open_segment(
        home(disk),
        t(first),
        trust,
        following=None if following is None else t(following),
        wall_milliseconds=7,
        lose=lose,
    )


def lose_index_from(disk: SimulatedDisk, count: int) -> None:
    """What a power cut may do to entries that were not synced."""
    cut(disk, IDX, 128 + 8 * count)


def ranges(damage: Damage) -> list[tuple[int, int]]:
    return [(first, following) for first, following in damage]


def good_records(segment: Segment, damage: Damage) -> list[int]:
    """IDs of the records that can be read, each checked; all others must be known as damaged."""
    found = []
    for number in range(segment.first_transaction_id, segment.next_transaction_id):
        if not any(first <= number < following for first, following in damage):
            records = segment.read(t(number), count_max=1, bytes_max=1)
            assert records == batch(number, 1)
            found.append(number)
    return found


def cut(disk: SimulatedDisk, path: str, size: int) -> None:
    disk.open(path).truncate(size)


def flip(disk: SimulatedDisk, path: str, position: int) -> None:
    disk.damage(path, position, bytes([disk.content(path)[position] ^ 0x10]))


def starts(count: int) -> list[int]:
    return [128 + int(offset) for offset in batch(0, count).offsets]
