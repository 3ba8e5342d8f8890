"""The hazards of the original's store, R1 to R12, each as what happens here instead.

The names are those of the design documents' list. Session keepers, sessions and recoveries are the
real ones; replicas, network and coordinator are plain objects (`world.py`).
Rows ST-01, ST-02, ST-09, ST-12, ST-13, ST-16, ST-18, ST-31, ST-32, ST-39, ST-40, ST-41, ST-42.
"""

from __future__ import annotations

import pytest

from tests.store.world import Calm, World
from waltz.limits import METADATA_RETRY_SECONDS_MAX, READ_SECONDS_MAX, RETRY_SECONDS_MAX
from waltz.record import NewRecord, pack_records
from waltz.store.events import AppendsFailed, Committed, StoreClosed, StoreOpened
from waltz.store.read_router import READ_AVOID_SECONDS, READ_HEDGE_SECONDS_MAX, ReadRouter
from waltz.store.requests import (
    AppendToReplica,
    MetadataRead,
    MetadataReadFailed,
    MetadataWriteFailed,
    ReadMetadata,
    ReplicaLink,
    RequestFailed,
    WriteMetadata,
)
from waltz.store.routed_read import (
    READ_LOOK_SECONDS,
    HolderFailed,
    HoldersSeen,
    RecordsArrived,
    RoutedRead,
)
from waltz.store.session_keeper import (
    MEMBER_CHANGE_PAUSE_SECONDS,
    MEMBER_CHANGE_SECONDS_MAX,
    AppendsSubmitted,
    CloseRequested,
    KeeperEffect,
    LoseOwnership,
    SessionKeeper,
)
from waltz.types import NOTHING, Generation, ReplicaId, SessionId, TransactionId


def ids(names: str) -> tuple[ReplicaId, ...]:
    return tuple(ReplicaId(f"{name}:1") for name in names)


def calm(replica_count: int, assigned: str, records: int = 3) -> Calm:
    """A world whose log has `records`, on those `assigned`."""
    world = Calm(replica_count)
    assign(world, assigned)
    world.submit(records)
    world.settle()
    return world


def one_is_back() -> Calm:
    """A world whose session asks the coordinator for the next one, since C was lost and is back."""
    world = calm(3, "abc")
    world.now += 100.0
    world.down("c")
    world.settle()
    world.up("c")
    world.settle(coordinates=False)
    return world


def assign(world: Calm, names: str) -> None:
    world.assigned = ids(names)
    world.settle()


def members(world: Calm) -> str:
    return "".join(sorted(replica_id[0] for replica_id in world.metadata.replica_states))


def is_full(world: Calm, names: str) -> bool:
    mark = max(world.log)
    return all(
        world.replicas[replica_id].log == [world.log[each] for each in range(mark + 1)]
        for replica_id in ids(names)
    )


def commits(world: Calm, count: int = 1) -> bool:
    """Whether appends are committed without any time passing."""
    before = len(world.log)
    world.submit(count)
    world.settle()
    return len(world.log) == before + count


# R1: a session may take appends before the metadata say who takes part


def test_r1_no_session_takes_appends_before_its_replica_states_are_written() -> None:
    world = one_is_back()
    world.down("c")
    world.submit(1)
    world.settle(coordinates=False)
    world.coordinate(world.server, fails=False)
    world.coordinate(world.server, fails=False)
    world.settle(coordinates=False)
    (states,) = world.server.metadata_requests
    assert isinstance(states, WriteMetadata)
    world.submit(1)
    world.settle(coordinates=False)
    assert isinstance(world.newest(), StoreClosed)
    sent = [wire.requests for wire in world.wires if wire.link.session_id == 1]
    assert not any(isinstance(each, AppendToReplica) for requests in sent for each in requests)
    world.coordinate(world.server, fails=False)
    assert isinstance(world.newest(), StoreOpened)
    assert world.metadata.replica_states[ReplicaId("c:1")].closing_high_water_mark is not None


# R2: one replica that fails while it recovers stops the recovery of all


def test_r2_a_replica_that_fails_during_recovery_is_absent_and_no_more() -> None:
    world = calm(3, "abc")
    world.close(world.server)
    world.server = server = world.add_server()
    world.settle(idle=("c:1",))
    for link in [link for link in server.wires if link.replica_id == "c:1"]:
        world.cut(server, server.wires[link])
    world.settle(idle=("c:1",))
    assert isinstance(world.newest(), StoreOpened)
    assert commits(world)


def test_r2_a_flapping_replica_never_keeps_a_majority_from_its_work() -> None:
    """ST-42: however fast it flaps, sessions are replaced at a bounded rate, and appends go on."""
    world = calm(3, "abc")
    minutes = 10
    started, sessions = world.now, len(world.sessions())
    while world.now < started + 60.0 * minutes:
        world.down("c")
        assert commits(world)
        world.up("c")
        world.pass_time(1.0)
        assert commits(world)
    assert len(world.sessions()) - sessions <= 10 + 60.0 * minutes / RETRY_SECONDS_MAX


# R3: no replica may vote, and nothing says so


def test_r3_a_recovery_that_nobody_may_vote_in_says_why_and_goes_on_when_one_may() -> None:
    """ST-32: two of three disks were put back from before the last session."""
    world = calm(3, "abc")
    world.close(world.server)
    newest = world.replicas[ReplicaId("b:1")]
    kept = (newest.session_id, newest.low_water_mark, [*newest.log])
    for name in "bc":
        replica = world.replicas[ReplicaId(f"{name}:1")]
        world.down(name)
        replica.blank()
        world.up(name)
    world.down("a")
    world.server = world.add_server()
    world.settle()
    world.pass_time(1000.0)
    obstacle = world.server.keeper.obstacle
    assert obstacle is not None
    assert "waits for votes of a majority of the last session's replicas" in obstacle
    assert "a:1 is not connected" in obstacle
    assert "b:1 does not vote (missed or lost what its last session wrote" in obstacle
    assert "c:1 does not vote" in obstacle
    assert world.server.keeper.high_water_mark is None

    world.down("b")
    newest.session_id, newest.low_water_mark, newest.log = kept
    newest.synced, newest.current = len(newest.log), world.server.session_id
    world.up("a")
    world.up("b")
    for _ in range(20):
        world.pass_time(RETRY_SECONDS_MAX)
    assert isinstance(world.newest(), StoreOpened)
    assert world.server.keeper.obstacle is None
    assert commits(world)


def test_r3_what_is_waited_for_is_named_at_every_stage() -> None:
    world = Calm()
    world.down("a")
    world.down("b")
    world.settle()
    obstacle = world.server.keeper.obstacle
    assert obstacle is not None
    assert "a:1 is not connected" in obstacle
    keeper = SessionKeeper(Generation(1))
    keeper.step([], 0.0)
    assert "the coordinator" in (keeper.obstacle or "")
    keeper.step([CloseRequested()], 0.0)
    assert keeper.obstacle is None


# R4: a majority of the replicas replaced at once


@pytest.mark.parametrize(
    ("last", "assigned"),
    [
        ("abc", "abcd"),
        ("abc", "abcde"),
        ("abcde", "abcd"),
        ("abcde", "abc"),
        ("abc", "abf"),
        ("abc", "ade"),
        ("abc", "def"),
        ("abc", "defga"),
        ("a", "bcd"),
        ("abcde", "f"),
        ("abc", "g"),
    ],
)
def test_r4_any_number_of_replicas_is_added_removed_or_replaced_at_once(
    last: str, assigned: str
) -> None:
    """ST-39, ST-40: the examples of the document, and changes of a majority and of all."""
    world = calm(7, last)
    assign(world, assigned)
    world.pass_time(1.0)
    assert members(world) == "".join(sorted(assigned))
    assert commits(world, 2)
    assert is_full(world, assigned)
    assert not world.failed


@pytest.mark.parametrize("lost", "abc")
def test_r4_one_of_the_old_replicas_may_be_away(lost: str) -> None:
    """ST-31: the two others vote, though both are taken away; and appends go on all the while."""
    world = calm(6, "abc")
    world.now += 100.0
    world.down(lost)
    world.settle()
    assign(world, "def")
    world.pass_time(1.0)
    assert members(world) == "def"
    assert commits(world)
    assert is_full(world, "def")


def test_r4_the_old_replicas_go_on_while_the_new_ones_cannot() -> None:
    """Nothing that could be written before the change cannot be written after it."""
    world = calm(6, "abc")
    for name in "def":
        world.down(name)
    assign(world, "def")
    for _ in range(10):
        assert commits(world)
        world.pass_time(60.0)
    assert members(world) == "abc"
    world.down("b")
    assert commits(world)
    world.up("d")
    world.up("f")
    for _ in range(5):
        world.pass_time(60.0)
        assert commits(world)
    assert members(world) == "def"
    assert is_full(world, "df")


def test_r4_a_change_that_does_not_succeed_is_taken_back_and_tried_again() -> None:
    """One of those that stay is away, so the two new ones would have to be filled first: the old
    ones go on until they are."""
    world = calm(5, "abc")
    world.now += 100.0
    world.down("c")
    world.down("d")
    world.down("e")
    world.assigned = ids("abcde")
    world.down("b")
    world.settle()
    world.up("b")
    world.settle()
    world.pass_time(MEMBER_CHANGE_SECONDS_MAX)
    world.pass_time(RETRY_SECONDS_MAX)
    assert members(world) == "abc"
    assert commits(world)
    world.up("d")
    world.up("e")
    for _ in range(5):
        world.pass_time(MEMBER_CHANGE_PAUSE_SECONDS)
    assert members(world) == "abcde"
    assert is_full(world, "abde")
    assert commits(world)


def test_r4_a_new_replica_that_hangs_does_not_hold_up_the_change() -> None:
    """Hazards R4 and R6: it is connected and never answers; the two others take over."""
    world = calm(6, "abc")
    world.assigned = ids("def")
    was_hanging = 0
    for _ in range(60):
        world.settle(idle=("f:1",))
        for link in [each for each in world.server.connecting if each.replica_id == "f:1"]:
            world.wire_up(world.server, link)
        world.settle(idle=("f:1",))
        for wire in [*world.server.wires.values()]:
            if wire.link.replica_id == "f:1" and world.now >= 10.0 * (was_hanging + 1):
                was_hanging += 1
                world.server.step(RequestFailed(wire.link, wire.requests[0], "no answer in 10 s"))
        world.now += 1.0
        world.server.step()
    assert was_hanging >= 2
    assert members(world) == "def"
    assert is_full(world, "de")


def test_r4_appends_that_wait_go_through_a_change_in_order() -> None:
    """ST-18."""
    world = calm(6, "abc")
    world.submit(50)
    assign(world, "def")
    world.submit(50)
    world.settle()
    world.pass_time(1.0)
    assert members(world) == "def"
    assert len(world.log) == 103
    assert not world.failed


@pytest.mark.parametrize("corrected", ["abc", "acd", "abcd", "d"])
def test_r4b_a_corrected_assignment_is_always_acted_upon(corrected: str) -> None:
    """ST-39: after one that names nodes that cannot be reached."""
    world = calm(7, "abc")
    for name in "efg":
        world.down(name)
    assign(world, "efg")
    world.pass_time(100.0)
    assert commits(world)
    assert members(world) == "abc"
    assign(world, corrected)
    world.pass_time(1.0)
    assert members(world) == corrected
    assert commits(world)
    assert is_full(world, corrected)


def test_r4b_an_assignment_is_acted_upon_while_a_recovery_waits() -> None:
    world = calm(4, "abc")
    world.down("b")
    world.down("c")
    world.settle()
    assert isinstance(world.newest(), StoreClosed)
    assign(world, "acd")
    world.pass_time(1000.0)
    assert isinstance(world.newest(), StoreClosed)
    assign(world, "abc")
    world.up("c")
    for _ in range(5):
        world.pass_time(RETRY_SECONDS_MAX)
    assert isinstance(world.newest(), StoreOpened)
    assert members(world) == "abc"
    assert commits(world)


# R5: appends that wait when a session ends are forgotten


def test_r5_every_append_that_waits_when_a_session_ends_gets_its_outcome() -> None:
    """ST-18: those in flight from the next mark, those behind them by being written."""
    world = calm(3, "abc", records=0)
    world.submit(100)
    world.settle(idle=("b:1", "c:1"))
    world.down("b")
    world.down("c")
    world.settle()
    world.submit(100)
    world.up("b")
    for _ in range(5):
        world.pass_time(RETRY_SECONDS_MAX)
    assert world.server.submitted == []
    told = world.told()
    committed = sum(len(event.batch) for event in told if isinstance(event, Committed))
    failed = sum(event.count for event in told if isinstance(event, AppendsFailed))
    assert committed + failed == 200
    assert committed >= 100


# R6: a storage node that hangs


def test_r6_a_hung_replica_holds_up_no_append_and_is_given_up() -> None:
    """ST-10: nothing comes from C, and its connection stays."""
    world = calm(3, "abc")
    world.now += 100.0
    world.submit(50)
    world.settle(idle=("c:1",))
    assert len(world.log) == 53
    (wire,) = [wire for wire in world.server.wires.values() if wire.link.replica_id == "c:1"]
    world.server.step(RequestFailed(wire.link, wire.requests[0], "no answer in 10 s"))
    world.settle(idle=("c:1",))
    assert world.sessions() == [0]
    assert (world.server.keeper.deadline, world.server.submitted) == (None, [])
    assert is_full(world, "ab")


def links(names: str) -> tuple[ReplicaLink, ...]:
    return tuple(ReplicaLink(SessionId(3), replica_id, 1) for replica_id in ids(names))


def test_r6_a_hung_replica_holds_up_no_read() -> None:
    """ST-16: another one is asked after a moment."""
    read = RoutedRead(ReadRouter(), TransactionId(0), 0.0)
    (first,) = read.step([HoldersSeen(links("ab"))], 0.0)
    deadline = read.deadline
    assert deadline is not None
    assert deadline <= READ_HEDGE_SECONDS_MAX
    (second,) = read.step([], deadline)
    assert {first.link, second.link} == {*links("ab")}
    batch = pack_records(TransactionId(0), [NewRecord(bytes(16), 0, b"", 0)])
    read.step([RecordsArrived(second.link, batch)], deadline)
    assert read.batch == batch


# R7: reads that spin


def test_r7_while_only_lagging_replicas_are_left_a_read_waits_and_ends() -> None:
    """ST-16."""
    read = RoutedRead(ReadRouter(), TransactionId(0), 0.0)
    now, steps = 0.0, 0
    while not read.closed:
        assert read.step([HoldersSeen(())], now) == []
        steps += 1
        now = read.deadline or now
    assert now == READ_SECONDS_MAX
    assert steps <= READ_SECONDS_MAX / READ_LOOK_SECONDS + 2
    assert read.failure is not None
    assert "nobody to ask" in read.failure


# R8: a store error while a partition starts stops it for good


def test_r8_errors_while_a_partition_starts_are_tried_again_at_a_bounded_rate() -> None:
    """ST-42."""
    keeper = SessionKeeper(Generation(2))
    delays: list[float] = []
    effects = keeper.step([], 0.0)
    for number in range(20):
        (effect,) = effects
        assert isinstance(effect, ReadMetadata)
        delays.append(effect.delay_seconds)
        effects = keeper.step([MetadataReadFailed("no coordinator")], float(number))
    assert sorted(delays) == delays
    assert delays[-1] == METADATA_RETRY_SECONDS_MAX
    assert not keeper.closed


def test_r8_a_later_generation_ends_one_ownership_and_never_the_partition() -> None:
    """ST-41: the server that gets it back opens it again."""
    world = calm(3, "abc")
    first = world.server
    world.server = world.add_server()
    world.settle()
    assert world.server.is_open
    for link in [*first.wires]:
        if link in first.wires:
            world.cut(first, first.wires[link])
    world.settle()
    assert first.is_fenced
    world.close(first)
    world.server = world.add_server()
    world.settle()
    assert isinstance(world.newest(), StoreOpened)
    assert commits(world)


# R9: read errors are remembered for ever


def test_r9_what_could_not_be_read_is_asked_for_again() -> None:
    """The record was repaired meanwhile. `tests/server/test_fetches.py` has what fetches keep."""
    router = ReadRouter()
    failing = RoutedRead(router, TransactionId(0), 0.0)
    failing.step([HoldersSeen(links("a"))], 0.0)
    failing.step([HolderFailed(links("a")[0], "transaction 0 is damaged", True)], 0.0)
    assert failing.failure is not None
    other = RoutedRead(router, TransactionId(1), 0.0)
    assert len(other.step([HoldersSeen(links("a"))], 0.0)) == 1
    later = RoutedRead(router, TransactionId(0), READ_AVOID_SECONDS)
    assert len(later.step([HoldersSeen(links("a"))], READ_AVOID_SECONDS)) == 1


# R10: metadata that cannot be written are tried for ever, holding everything


def test_r10_without_the_coordinator_no_open_session_is_ended_for_the_next_one() -> None:
    world = one_is_back()
    for _ in range(5):
        (ahead,) = world.server.metadata_requests
        assert isinstance(ahead, ReadMetadata)
        world.server.metadata_requests.clear()
        world.server.step(MetadataReadFailed("no coordinator"))
        world.submit(1)
        world.settle(coordinates=False)
        assert world.server.submitted == []
        deadline = world.server.keeper.deadline
        assert deadline is not None
        assert world.now < deadline <= world.now + METADATA_RETRY_SECONDS_MAX
        world.now = deadline
        world.server.step()
        world.submit(1)
        world.settle(coordinates=False)
        assert world.server.submitted == []
    world.settle()
    assert world.sessions() == [0, 1]
    assert is_full(world, "abc")


def test_r10_without_the_coordinator_an_open_session_goes_on_and_takes_others_in_later() -> None:
    world = calm(3, "abc")
    world.now += 100.0
    world.down("c")
    world.close(world.server)
    world.server = world.add_server()
    world.settle()
    world.up("c")
    world.settle(coordinates=False)
    assert isinstance(world.server.metadata_requests[0], WriteMetadata)
    for _ in range(5):
        world.server.metadata_requests.clear()
        world.server.step(MetadataWriteFailed("no coordinator"))
        (again,) = world.server.metadata_requests
        assert isinstance(again, ReadMetadata)
        assert again.delay_seconds <= METADATA_RETRY_SECONDS_MAX
        world.server.metadata_requests.clear()
        world.submit(1)
        world.settle(coordinates=False)
        assert world.server.submitted == []
        world.server.step(MetadataReadFailed("no coordinator"))
    world.settle()
    assert world.metadata.replica_states[ReplicaId("c:1")].closing_high_water_mark is None
    assert is_full(world, "abc")


def test_r10_a_partition_is_closed_and_reassigned_while_the_coordinator_is_away() -> None:
    world = calm(4, "abc")
    world.close(world.server)
    world.server = server = world.add_server()
    world.settle(coordinates=False)
    server.step(MetadataReadFailed("no coordinator"))
    server.step(CloseRequested())
    assert server.keeper.closed
    assert server.wires == {}


# R11: every loss of one replica stalls the partition


def test_r11_losing_one_replica_of_three_costs_no_append_and_no_time() -> None:
    """ST-02, ST-09, ST-13: the session goes on."""
    world = calm(3, "abc")
    world.now += 100.0
    world.submit(20)
    world.down("b")
    world.settle()
    assert world.server.submitted == []
    assert world.sessions() == [0]
    assert not any(isinstance(event, AppendsFailed) for event in world.told())
    assert commits(world)
    assert world.server.keeper.deadline is None


# R12: appends of another generation are dropped silently


def test_r12_a_keeper_that_finds_a_later_generation_says_so_once_and_promises_nothing() -> None:
    """ST-41: whoever waits is told by what follows: the server answers its clients, and the next
    owner's log has the truth. The generation is checked before the locks; see
    `tests/server/test_server_partition.py`."""
    keeper = SessionKeeper(Generation(3))
    keeper.step([AppendsSubmitted((NewRecord(bytes(16), 0, b"", 0),))], 0.0)
    later = World(0).metadata.__class__(Generation(4), SessionId(8), {})
    told: list[KeeperEffect] = [*keeper.step([MetadataRead(later, 2, ids("abc"))], 0.0)]
    told += keeper.step([AppendsSubmitted((NewRecord(bytes(16), 0, b"", 0),))], 1.0)
    told += keeper.step([CloseRequested()], 2.0)
    assert [type(effect) for effect in told] == [LoseOwnership]
    assert keeper.closed
    assert keeper.high_water_mark in (None, NOTHING)
