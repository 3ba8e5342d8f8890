"""What users saw, as it is written down."""

from __future__ import annotations

from waltz.sim.history import History, Payload
from waltz.types import PartitionId

P = PartitionId(1)


def test_payloads_survive_and_foreign_data_is_recognised() -> None:
    there = Payload(1, 2, 3, 4, b"padding")
    assert Payload.decode(there.encode()) == there
    assert Payload.decode(b"") is None
    assert Payload.decode(b"something of somebody else's that is long") is None


def test_contexts_are_numbered_from_one_and_their_endings_counted() -> None:
    ends: list[int] = []
    history = History(on_end=lambda: ends.append(history.ended_count))
    assert [history.submit("client", P) for _ in range(3)] == [1, 2, 3]
    history.end(2, True)
    history.end(1, "expired")
    assert ends == [1, 2]
    assert [s.endings for s in history.submissions.values()] == [["expired"], [True], []]


def test_every_client_and_partition_has_a_feed_of_its_own() -> None:
    history = History()
    feed = history.feed("client", P)
    assert history.feed("client", P) is feed
    assert history.feed("client", PartitionId(0)) is not feed
    assert history.feed("other", P) is not feed
