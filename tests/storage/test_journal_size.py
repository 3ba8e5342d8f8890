"""The part of the disk that journals take, for segments that were filled slowly and quickly."""

from __future__ import annotations

import pytest

from tests.storage.support import DIRECTORY, DIRECTORY_ID, fresh_disk, home, t
from waltz.storage.journal.journal_file import JournalFile, JournalPlace, read_journal
from waltz.storage.journal.pacing import JournalPacing, LogWorked
from waltz.storage.journal.thinning import JOURNAL_BYTES_MIN, journal_bytes_max
from waltz.wire.journal_facts import JournalFacts

SEGMENT_BYTES = 64 * 1024 * 1024
"""The smallest segment whose journal is bounded by its part of it."""
RECORD_BYTES = 1024 + 40
PART_MAX = 0.001
START = 1_700_000_000_000


@pytest.mark.parametrize(
    ("rate", "batch"),
    [pytest.param(0.1, 1, marks=pytest.mark.long), (2.0, 1), (50.0, 5), (1e3, 10), (5e4, 1000)],
)
def test_a_full_segment_has_a_journal_of_a_thousandth_and_a_time_for_each_record(
    rate: float, batch: int
) -> None:
    disk = fresh_disk()
    disk.make_directory(f"{DIRECTORY}/0")
    place = JournalPlace(home(disk), DIRECTORY_ID, journal_bytes_max(SEGMENT_BYTES))
    file, pacing = JournalFile(place, t(0), START), JournalPacing()
    count = SEGMENT_BYTES // RECORD_BYTES
    times = []
    for first in range(0, count, batch):
        now = first / rate
        wall = START + int(now * 1000)
        worked = LogWorked(1, t(0), t(0), t(first - 1), wall, t(first + batch - 1), wall + 1)
        if entries := [*pacing.step((), now), *pacing.step((worked,), now)]:
            file.append(entries)
        times.append(wall)
    if entries := [*pacing.flush()]:
        file.append(entries)
    size = len(disk.content(place.path(t(0))))
    assert size <= max(JOURNAL_BYTES_MIN, PART_MAX * SEGMENT_BYTES)
    found = read_journal(place, t(0))
    assert found is not None
    facts = JournalFacts(found.entries)
    span = times[-1] - times[0] + 1
    for place_, wall in enumerate(times[1:], 1):
        interval = facts.interval(place_ * batch)
        assert interval is not None
        assert interval.not_before <= wall + 1
        assert interval.not_after >= wall
        assert interval.not_after - interval.not_before <= max(2_500, span / 300)


def test_the_usual_segment_has_a_journal_of_less_than_a_thousandth() -> None:
    for threshold in (SEGMENT_BYTES, 10**9, 2**31 - 1, 10**12):
        assert journal_bytes_max(threshold) <= PART_MAX * threshold
