"""Lists the segments of a partition's directory: those with a data file or an index.

Owns the judgement of file names and of the files that a crash in the middle of a roll-over leaves.
Opens no segment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from waltz.storage.log.segment import DATA_SUFFIX, INDEX_SUFFIX, NAME_DIGITS, SegmentHome
from waltz.storage.log.segment_recovery import Trust, indexed_count, is_unfinished
from waltz.types import TransactionId

FIRST: Final = TransactionId(0)


def segment_names(home: SegmentHome, suffix: str) -> list[TransactionId]:
    """Return the first transaction IDs of the files with this suffix, ascending. Raises OSError."""
    return [
        TransactionId(int(name[:NAME_DIGITS]))
        for name in home.disk.list_directory(home.directory)
        if len(name) == NAME_DIGITS + len(suffix)
        and name.endswith(suffix)
        and name[:NAME_DIGITS].isdigit()
    ]


def find_segments(
    home: SegmentHome, trust: Trust, remove: Callable[[TransactionId], None]
) -> list[TransactionId]:
    """Return the first transaction IDs of all segments that a file or `trust` tells of.

    `remove` removes a segment in which nothing is known to be durable. Raises OSError.
    """
    firsts = segment_names(home, DATA_SUFFIX)
    while trust.ceiling is not None and len(firsts) > 1 and firsts[-1] >= trust.ceiling:
        # Nothing in it is known to be durable, perhaps not even its header.
        remove(firsts.pop())
    known = max(trust.local_low_water_mark, trust.newest)
    if firsts and firsts[-1] > known and is_unfinished(home, firsts[-1]):
        # Left by a crash in the middle of a roll-over; the next append makes the segment anew.
        home.disk.remove(home.path(firsts.pop(), DATA_SUFFIX))
        home.disk.sync_directory(home.directory)
    without_data = set(segment_names(home, INDEX_SUFFIX)).difference(firsts)
    if firsts[:1] != [FIRST] and (firsts or indexed_count(home, FIRST)):
        firsts.insert(0, FIRST)
    while firsts and without_data and trust.index_is_proof:
        following = TransactionId(firsts[-1] + indexed_count(home, firsts[-1]))
        if following not in without_data or not indexed_count(home, following):
            break
        if trust.ceiling is not None and following >= trust.ceiling:
            break
        firsts.append(following)
    return firsts


def holds_segments(home: SegmentHome) -> bool:
    """Whether the directory exists and has a data file, or an index with entries. Raises
    OSError."""
    if not home.disk.exists(home.directory):
        return False
    return bool(segment_names(home, DATA_SUFFIX)) or indexed_count(home, FIRST) > 0
