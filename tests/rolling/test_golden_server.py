"""The parts of the golden server that never wait, judged by what the original printed and wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.interop.conversation import FRAMES, HEADER_BYTES
from tests.rolling.golden_link import joined_records, split_headers, split_records
from tests.rolling.golden_recovery import cut_of, judge, states_after
from tests.rolling.golden_server import Append, LockTable, slots_of
from tests.rolling.golden_storage import HEAD_BYTES
from tests.rolling.golden_tree import (
    UNRESOLVED,
    Assignment,
    Descriptor,
    IncompleteError,
    Metadata,
    assign,
    read_assignment,
    read_descriptor,
    read_metadata,
    read_replicas,
)
from tests.wire.golden import DIRECTORY

ROOT = "/waltz_cluster"
TREES = {path.stem: path for path in sorted(DIRECTORY.glob("zk-*.jsonl"))}
VALUES = dict(
    line.split(" = ", 1)
    for line in (DIRECTORY / "frames.txt").read_text().splitlines()
    if line.startswith("zk ")
)
LINES = (DIRECTORY / "frames.txt").read_text().splitlines()
X, Y, Z = "x:1", "y:1", "z:1"


def nodes(tree: str) -> dict[str, dict[str, object]]:
    """Return the original's nodes by path."""
    lines = TREES[tree].read_text().splitlines()
    return {found["path"]: found for found in map(json.loads, lines)}


def data(tree: str, path: str) -> bytes:
    return bytes.fromhex(str(nodes(tree)[f"{ROOT}/{path}"]["dataHex"]))


def value(name: str) -> bytes:
    return bytes.fromhex(VALUES[f"zk {name}"])


def test_it_shares_no_code_with_the_product() -> None:
    for path in Path(__file__).parent.glob("golden_*.py"):
        assert not re.search(r"^\s*(from|import) waltz\b", path.read_text(), re.MULTILINE), path


# Values of ZooKeeper


@pytest.mark.parametrize("tree", TREES)
def test_what_the_original_wrote_into_zookeeper_is_read_and_written_the_same(tree: str) -> None:
    for path in nodes(tree):
        name = path.removeprefix(f"{ROOT}/")
        if name == "serverDescriptors":
            assert read_assignment(data(tree, name)).to_bytes() == data(tree, name)
        elif name.startswith("serverDescriptors/"):
            assert read_descriptor(data(tree, name)).to_bytes() == data(tree, name)
        elif name.startswith("store/partition/"):
            partition = int(name.rpartition("/")[2])
            assert read_metadata(data(tree, name)).to_bytes(partition) == data(tree, name)


def test_values_are_those_that_the_original_printed() -> None:
    assert Assignment(-1, 0).to_bytes() == value("PA initial")
    two = Assignment(2, 4, {1: {0: 1, 2: 1}, 2: {1: 1, 3: 4}})
    assert two.to_bytes() == value("PA 2 servers")
    assert read_assignment(value("PA 2 servers")) == two
    preferring = Descriptor(1, "h", 55_180, (0, 3))
    assert preferring.to_bytes() == value("SD pref")
    assert read_descriptor(value("SD pref")) == preferring
    assert Metadata().to_bytes(0) == value("PM EMPTY")
    assert Metadata(3, 9, {"h1:6000": (9, UNRESOLVED)}).to_bytes(2) == value("PM")
    assert Metadata(3, 9, {"h2:6000": (8, 99)}).to_bytes(2) == value("PM closed")
    assert read_replicas(value("Replica")) == {number: ["h1:6000"] for number in range(4)}


# The policy


def test_partitions_are_assigned_as_the_original_assigned_them() -> None:
    first = assign(Assignment(-1, 0), 1, 2, {1: ()})
    assert first == read_assignment(data("zk-3-server-up", "serverDescriptors"))
    second = assign(first, 2, 2, {1: (), 2: ()})
    assert second == read_assignment(data("zk-7-two-servers", "serverDescriptors"))
    third = assign(second, 3, 2, {2: ()})
    assert third == read_assignment(data("zk-8-server1-dead", "serverDescriptors"))


def test_partitions_move_one_by_one() -> None:
    two = assign(Assignment(-1, 0), 2, 4, {1: (), 2: ()})
    assert two.servers == {1: {0: 1, 1: 1}, 2: {2: 1, 3: 1}}
    three = assign(two, 3, 4, {1: (), 2: (), 3: ()})
    assert three.servers == {1: {0: 1, 1: 1}, 2: {2: 1}, 3: {3: 2}}
    assert assign(three, 4, 4, {1: (), 2: ()}).servers == {1: {0: 1, 1: 1}, 2: {2: 1, 3: 3}}


def test_preferred_partitions_come_first_and_may_leave_some_without_a_server() -> None:
    before = Assignment(1, 4, {1: {0: 1, 1: 1, 2: 1, 3: 1}})
    found = assign(before, 2, 4, {1: (), 2: (0, 9)})
    assert found.servers == {1: {1: 1, 2: 1}, 2: {0: 2, 3: 2}}
    with pytest.raises(IncompleteError):
        assign(before, 3, 4, {1: (), 2: (0,), 3: ()})


# Locks


def test_locks_have_the_slots_of_the_original() -> None:
    assert slots_of(-1177318868) == [9493, 29706, 26539]
    assert slots_of(-812521678) == [21795, 22096, 8793]
    printed = [line for line in LINES if line.startswith("lockslots ")]
    for line in printed:
        lock, _, steps = line.removeprefix("lockslots ").partition(" = ")
        assert slots_of(int(lock)) == [int(each) for each in re.findall(r"idx=(\d+)", steps)]
    assert len(printed) == 5


def test_a_lock_is_held_until_its_append_is_decided() -> None:
    table = LockTable(3)
    assert table.estimate([]) == -1
    assert table.estimate([7]) == 3
    assert table.begin([7], [7])
    assert not table.begin([7], [])
    table.release([7], 12)
    assert table.begin([7], [])
    assert (table.estimate([7]), table.estimate([8])) == (12, 3)
    table.release([7], None)
    assert table.estimate([7]) == 12


# Messages


@pytest.mark.parametrize(
    ("name", "version", "locks"),
    [
        ("V0 Append w[1,-2]", 0, ([1, -2], [], [])),
        ("V1 Append w[1] r[2]", 1, ([1], [2], [])),
        ("V4 Append w[1] r[2] a[3]", 4, ([1], [2], [3])),
    ],
)
def test_an_append_is_taken_apart(
    name: str, version: int, locks: tuple[list[int], list[int], list[int]]
) -> None:
    payload = FRAMES[name][HEADER_BYTES:]
    found = Append(payload, version)
    assert (found.writes, found.reads, found.appends) == locks
    assert (found.generation, found.partition, found.mark) == (3, 2, 99)
    assert (found.header, found.body[4:-4]) == (bytes.fromhex("11223344"), b"hello")
    with pytest.raises(ValueError, match="checksum"):
        Append(payload[:-1] + b"\0", version)


def test_records_are_those_of_the_original() -> None:
    record = FRAMES["S RecListResp"][HEADER_BYTES + HEAD_BYTES :]
    assert joined_records(split_records(record)) == FRAMES["S Append"][HEADER_BYTES + 21 :]
    headers = FRAMES["S HdrListResp"][HEADER_BYTES + HEAD_BYTES :]
    ((number, request_id, header),) = split_headers(headers)
    assert (number, header) == (100, bytes.fromhex("11223344"))
    assert request_id == bytes.fromhex("00000007000000030000000200000005")


# Recovery


def test_a_replica_is_cut_by_the_first_rule_that_fits() -> None:
    states = {X: (4, UNRESOLVED), Y: (3, 70)}
    assert cut_of(states, X, 3, 50) == ("A, inconsistent", 50)
    assert cut_of(states, Z, 3, 50) == ("B, new", 50)
    assert cut_of(states, Y, 3, 50) == ("C, closed", 70)
    assert cut_of(states, X, 4, 50) == ("E, votes", None)
    assert cut_of({}, Z, -1, -1) == ("E, votes", None)


def test_the_mark_is_resolved_by_a_majority_of_the_last_replicas() -> None:
    last = dict.fromkeys((X, Y, Z), (1, UNRESOLVED))
    assert judge({X: 120, Y: 120}, last, 120, 120) == (None, 120)
    assert judge({X: 120, Y: 120, Z: 115}, last, 115, 115) == (X, 120)
    # A third replica may hold what only one of two has.
    assert judge({X: 125, Y: 120}, last, 125, 120) == (None, None)
    assert judge({X: 125, Y: 120}, last, 120, 120) == (X, None)
    assert judge({X: 125, Y: 120, Z: 120}, last, 120, 120) == (X, 120)
    assert judge({X: 125}, last, 125, 125) == (None, None)
    # Below the smallest vote nothing is judged, and a new replica does not count.
    assert judge({X: 120, Y: 120, Z: 100}, last, 100, 120) == (X, None)
    assert judge({X: 120, "new:1": 120}, last, 120, 120) == (None, None)


def test_states_are_those_that_the_original_wrote() -> None:
    up, down, back = (
        read_metadata(data(tree, "store/partition/0")).states
        for tree in ("zk-4-after-clients", "zk-5-storage3-down", "zk-6-storage3-back")
    )
    away = next(place for place, (_, mark) in down.items() if mark != UNRESOLVED)
    clean = set(up) - {away}
    assert states_after(up, list(up), clean, 1, down[away][1]) == down
    assert states_after(down, list(up), set(up), 1, down[away][1]) == back
    new = states_after({}, [X, Y, Z], {X, Y}, 0, -1)
    assert new == {X: (0, UNRESOLVED), Y: (0, UNRESOLVED), Z: (-1, -1)}
    # Closed once, it stays so; a replica that is assigned no longer is forgotten.
    assert states_after({**down, X: (0, 5)}, [away], set(), 4, 99) == {away: down[away]}
