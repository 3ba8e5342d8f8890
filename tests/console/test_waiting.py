"""Sentences on who waits for whom; those of whole clusters are in `test_picture.py`."""

from __future__ import annotations

from waltz.cli.replica_standing import ReplicaView
from waltz.console.waiting import no_server, takes_none, takes_some, unknown, well

AWAY = ReplicaView("b", "silent", None, None, "")
HERE = ReplicaView("a", "current", True, 0.1, "")


def named(*views: ReplicaView) -> list[tuple[str, ReplicaView]]:
    return [(f"storage-{index + 1}", view) for index, view in enumerate(views)]


def test_one_partition_and_several_have_their_own_grammar() -> None:
    assert well().sentence([3]) == "Partition 3 takes appends on all its replicas."
    assert well().sentence([0, 1, 2, 7]) == (
        "Partitions 0\N{EN DASH}2, 7 take appends on all their replicas."
    )
    assert unknown("why").sentence([1, 2]).startswith("Partitions 1\N{EN DASH}2 may or may not")


def test_a_long_list_of_partitions_is_cut_and_counted() -> None:
    sentence = well().sentence(range(0, 200, 2))
    assert len(sentence) < 140
    assert "and others, 100 in all, take appends" in sentence


def test_many_replicas_are_counted() -> None:
    cause = takes_some(named(HERE, *[AWAY] * 6), {"b"})
    assert "storage-2, storage-3, storage-4 and 3 others are away" in cause.because


def test_a_majority_that_is_there_is_not_said_to_be_missing() -> None:
    """A store can refuse appends for another reason, which its server names."""
    cause = takes_none(named(HERE, HERE, AWAY), "the session is ending", 3, ())
    assert cause.because == "the session is ending"


def test_replicas_that_do_not_answer_are_waited_for() -> None:
    cause = takes_none(named(HERE, AWAY, AWAY), "no majority", 3, ())
    assert cause.because == (
        "storage-2 and storage-3 do not answer the server; one more replica is needed for a"
        " majority"
    )


def test_a_replica_that_is_being_recovered_is_not_missing() -> None:
    """Its recovery waits for a majority: it is the others that partition and replica wait for."""
    coming = ReplicaView("a", "recovering", False, 0.1, "")
    assert takes_none(named(coming, AWAY, AWAY), "waits", 3, {"b"}).because == (
        "storage-1 is being recovered, storage-2 and storage-3 are away; one more replica is needed"
        " for a majority"
    )
    assert takes_none(named(coming, coming, AWAY), "it is opening", 3, ()).because == (
        "it is opening"
    )


def test_without_any_server_nobody_is_blamed() -> None:
    assert no_server(runs_any=False).because == "no server of the cluster is running"
