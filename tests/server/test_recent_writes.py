"""The newest transactions and their locks, against a list of all."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from waltz.server.appends.claims import Claimed
from waltz.server.appends.recent_writes import RecentWrites


def claimed(tickets: list[int], locks: list[int], *, as_columns: bool) -> Claimed:
    if as_columns:
        return Claimed(
            np.array(tickets, np.int64), np.array(locks, np.int64), np.zeros((0, 3), np.int64)
        )
    return Claimed(tickets, locks, ())


@pytest.mark.parametrize("seed", range(20))
def test_a_write_is_known_as_long_as_it_is_among_the_newest(seed: int) -> None:
    random = Random(seed)
    commits_max, locks_max = random.choice([1, 3, 10]), random.choice([1, 5, 30])
    writes = RecentWrites(commits_max, locks_max)
    ticket, next_id = 0, 0
    commits: list[list[tuple[int, int]]] = []
    for _ in range(30):
        ticket += random.choice([0, 0, 2])  # some fail
        tickets: list[int] = []
        for _ in range(random.randint(1, 4)):
            ticket += 1
            tickets += [ticket] * random.randint(0, 3)
        count = ticket - (tickets[0] if tickets else ticket) + 1
        next_id += random.randint(0, 3) + count
        shift = next_id - ticket
        locks = [random.randint(-5, 5) for _ in tickets]
        if tickets:
            writes.add(claimed(tickets, locks, as_columns=random.random() < 0.5), shift)
            commits.append(
                [(each + shift, lock) for each, lock in zip(tickets, locks, strict=True)]
            )
        kept = commits[-commits_max:]
        while len(kept) > 1 and sum(map(len, kept)) > locks_max:
            kept = kept[1:]
        known = {pair for commit in kept for pair in commit}
        for number in range(max(0, next_id - 40), next_id + 2):
            for lock in range(-6, 7):
                assert writes.has(number, lock) is ((number, lock) in known)


def test_nothing_is_known_at_first() -> None:
    assert not RecentWrites().has(0, 1)
