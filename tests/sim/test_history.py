"""The record of what users saw counts contexts, keeps endings in order, and knows what is open."""

from __future__ import annotations

from waltz.sim.judges.history import ContextVerdict, History
from waltz.types import PartitionId

P = PartitionId(0)


def test_contexts_are_numbered_and_moments_tell_what_came_first() -> None:
    history = History()
    first, second = history.submit("a", P), history.submit("b", P)
    history.end(first, ContextVerdict.COMMITTED)
    third = history.submit("a", P)
    assert (first, second, third) == (1, 2, 3)
    moments = [
        history.submissions[1].moment,
        history.submissions[2].moment,
        history.submissions[1].endings[0].moment,
        history.submissions[3].moment,
    ]
    assert moments == sorted({*moments})


def test_whoever_waits_for_endings_hears_of_each() -> None:
    heard: list[int] = []
    history = History(on_end=lambda: heard.append(history.ended_count))
    for _ in range(2):
        history.end(history.submit("a", P), ContextVerdict.REFUSED)
    assert heard == [1, 2]


def test_what_a_dead_client_had_open_is_lost_and_nothing_else() -> None:
    history = History()
    contexts = [history.submit(name, P) for name in ("a", "a", "b")]
    history.end(contexts[0], ContextVerdict.COMMITTED)
    assert history.open_count("a") == 1
    assert history.abandon("a", ContextVerdict.LOST) == [contexts[1]]
    assert history.abandon("a", ContextVerdict.LOST) == []
    assert history.abandon("nobody", ContextVerdict.LOST) == []
    assert [[e.verdict for e in s.endings] for s in history.submissions.values()] == [
        [ContextVerdict.COMMITTED], [ContextVerdict.LOST], [],
    ]  # fmt: skip
    assert (history.open_count("a"), history.open_count("b")) == (0, 1)
    assert history.ended_count == 2


def test_only_two_verdicts_deny_that_a_transaction_is_in_the_log() -> None:
    assert {verdict for verdict in ContextVerdict if verdict.denies} == {
        ContextVerdict.REFUSED, ContextVerdict.UNWRITTEN,
    }  # fmt: skip


def test_feeds_are_kept_per_follower_and_partition() -> None:
    history = History()
    history.feed("a", P)
    assert history.feed("a", P) is history.feed("a", P)
    assert history.feed("a", PartitionId(1)) is not history.feed("a", P)
    assert [*history.feeds] == ["a"]
