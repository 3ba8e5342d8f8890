"""The replicas of the next session. Rows ST-31, ST-39, ST-40; hazard R4."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import pytest

from waltz.cluster.partition_metadata import ReplicaState
from waltz.majority import majority
from waltz.store.membership import SessionMembers, choose_members
from waltz.types import ReplicaId, SessionId, TransactionId


def ids(names: str) -> tuple[ReplicaId, ...]:
    return tuple(ReplicaId(f"{name}:1") for name in names)


def states(last: str, written_off: str = "") -> Mapping[ReplicaId, ReplicaState]:
    """Those of `last` took part in the last session but the ones `written_off`."""
    away = ids(written_off)
    return {
        each: ReplicaState(SessionId(7), TransactionId(3) if each in away else None)
        for each in ids(last)
    }


@pytest.mark.parametrize(
    ("last", "written_off", "assigned", "members", "guests"),
    [
        ("", "", "abc", "abc", ""),
        ("abc", "", "abc", "abc", ""),
        ("abc", "", "cba", "cba", ""),
        ("abc", "abc", "abc", "abc", ""),
        # added: one, several; removed: one, several
        ("abc", "", "abcd", "abcd", ""),
        ("abc", "", "abcde", "abcde", ""),
        ("abcde", "", "abcd", "abcd", "e"),
        ("abcde", "", "ab", "ab", "cde"),
        # replaced: a minority, a majority, all
        ("abc", "", "abf", "abf", "c"),
        ("abc", "", "ade", "abc", "de"),
        ("abc", "", "def", "abc", "def"),
        # more new ones than old ones
        ("a", "", "abc", "a", "bc"),
        ("abc", "", "abcdef", "abc", "def"),
        # one that is to stay is away
        ("abc", "b", "abf", "abc", "f"),
        ("abc", "c", "abcde", "abc", "de"),
        ("abc", "b", "ab", "abc", ""),
        ("abc", "b", "ac", "ac", "b"),
    ],
)
def test_those_take_over_that_can_open_a_session(
    last: str, written_off: str, assigned: str, members: str, guests: str
) -> None:
    chosen = choose_members(states(last, written_off), ids(assigned), None)
    is_change = bool(last) and {*last} != {*assigned}
    assert chosen == SessionMembers(ids(assigned), ids(members), ids(guests), is_change)
    assert chosen.is_complete == (members == assigned)
    assert not chosen.settled().is_change


def test_new_ones_take_over_once_a_majority_of_those_assigned_is_filled() -> None:
    last, assigned = states("abc"), ids("def")
    assert choose_members(last, assigned, ids("d")).members == ids("abc")
    assert choose_members(last, assigned, ids("df")) == SessionMembers(
        assigned, assigned, ids("abc"), is_change=True
    )


def test_every_change_can_vote_and_open_with_those_of_the_last_session() -> None:
    """Whatever the change: all voters are there, and so is a majority that holds the log."""
    for count in range(1, 6):
        for assigned in combinations("abcdefg", count):
            for last in ("a", "ab", "abc", "abcde"):
                chosen = choose_members(states(last), ids("".join(assigned)), None)
                there = {*chosen.members, *chosen.guests}
                assert there >= {*ids(last), *chosen.assigned}
                full = sum(each in ids(last) for each in chosen.members)
                assert full >= majority(len(chosen.members))
