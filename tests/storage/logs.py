"""Logs of one partition for tests: nine records of 100 bytes in each segment."""

from __future__ import annotations

from tests.storage.support import DIRECTORY, batch, fresh_disk, home, t
from waltz.errors import (
    CorruptionError,
)
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.log.checked_records import ScrubStep
from waltz.storage.log.segment_recovery import TornTail, Trust
from waltz.storage.log.segments import SegmentChain

THRESHOLD = 1000
"""Nine records of 100 bytes, and one more."""


def path(first: int, suffix: str = ".seg") -> str:
    return f"{DIRECTORY}/0/{first:019d}{suffix}"


def make_chain(disk: SimulatedDisk, *, threshold: int = THRESHOLD) -> SegmentChain:
    """Not opened."""
    return SegmentChain(
        home(disk), segment_bytes_threshold=threshold, wall_milliseconds=lambda: 1_700_000_000_001
    )


def open_chain(
    disk: SimulatedDisk,
    *,
    threshold: int = THRESHOLD,
    mark: int = -1,
    proof: bool = True,
    ceiling: int | None = None,
) -> tuple[SegmentChain, TornTail | None]:
    chain = make_chain(disk, threshold=threshold)
    trust = Trust(
        local_low_water_mark=t(mark),
        index_is_proof=proof,
        ceiling=None if ceiling is None else t(ceiling),
    )
    return chain, chain.open(trust)


def filled_disk(count: int, *, threshold: int = THRESHOLD) -> SimulatedDisk:
    """A cleanly closed chain of records of 100 bytes."""
    disk = fresh_disk()
    chain, _ = open_chain(disk, threshold=threshold)
    chain.write(batch(0, count, size=60))
    chain.sync()
    chain.close()
    return disk


def reopened(disk: SimulatedDisk, *, mark: int = -1) -> SegmentChain:
    chain, torn = open_chain(disk, mark=mark)
    assert torn is None
    return chain


def ranges(chain: SegmentChain) -> list[tuple[int, int]]:
    return [(first, following) for first, following in chain.damage]


def readable(chain: SegmentChain) -> list[int]:
    """IDs of all records that are served, one by one; each is what was written."""
    found = []
    for number in range(chain.next_transaction_id):
        try:
            records = chain.records.read(t(number), count_max=1, bytes_max=1)
        except CorruptionError:
            continue
        assert records == batch(number, 1, size=60)
        found.append(number)
    return found


def scrub_all(chain: SegmentChain, bytes_max: int = 500) -> ScrubStep:
    """Scrub everything step by step; return the sum of the steps."""
    position, total = t(0), ScrubStep(t(0), 0, 0, (), 0)
    while position < chain.next_transaction_id:
        step = chain.records.scrub(position, bytes_max)
        assert step.next_transaction_id > position
        assert step.bytes_read <= bytes_max + 100
        position = step.next_transaction_id
        total = ScrubStep(
            position,
            total.bytes_read + step.bytes_read,
            total.records + step.records,
            total.damaged + step.damaged,
            total.indexes_healed + step.indexes_healed,
        )
    return total


def flip(disk: SimulatedDisk, where: str, position: int) -> None:
    disk.damage(where, position, bytes([disk.content(where)[position] ^ 0x10]))


def place(number: int) -> tuple[str, int]:
    """The file and the first byte of a record; segments have nine records."""
    return path(number - number % 9), 128 + 100 * (number % 9)


def spoil(disk: SimulatedDisk, *numbers: int) -> None:
    for number in numbers:
        where, offset = place(number)
        flip(disk, where, offset + 50)
