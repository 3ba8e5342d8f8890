"""One session after another. Rows ST-01, ST-09, ST-11, ST-13, ST-18, ST-22, ST-36, ST-39, ST-41."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.store.world import Calm, World
from waltz.cluster.partition_metadata import NEW_PARTITION, SESSION_CLIMB, PartitionMetadata
from waltz.limits import (
    BATCH_BYTES_MAX,
    BATCHES_IN_FLIGHT_MAX,
    METADATA_RETRY_SECONDS_MAX,
    RETRY_SECONDS_MAX,
)
from waltz.record import NewRecord
from waltz.store.events import AppendsFailed, Committed, StoreClosed, StoreOpened
from waltz.store.requests import (
    MetadataRead,
    MetadataReadFailed,
    MetadataWriteFailed,
    MetadataWritten,
    ReadMetadata,
    ReplicaLost,
    WriteMetadata,
)
from waltz.store.session_keeper import (
    BATCH_RECORDS_MAX,
    AppendsSubmitted,
    CloseRequested,
    KeeperEffect,
    LoseOwnership,
    ReplicasAssigned,
    SessionKeeper,
)
from waltz.types import Generation, ReplicaId, SessionId, TransactionId

A = ReplicaId("a:1")


def test_everything_that_waits_for_a_slot_becomes_one_batch() -> None:
    """ST-11: group commit."""
    world = Calm()
    world.submit(100)
    world.settle()
    batches = [event.batch for event in world.told() if isinstance(event, Committed)]
    assert [len(batch) for batch in batches][:BATCHES_IN_FLIGHT_MAX] == [1] * BATCHES_IN_FLIGHT_MAX
    assert len(batches) <= BATCHES_IN_FLIGHT_MAX + 2
    assert sum(map(len, batches)) == 100
    assert [batch.first_transaction_id for batch in batches][:5] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("count", "size"), [(BATCH_RECORDS_MAX + 1, 0), (3, BATCH_BYTES_MAX // 2)])
def test_a_batch_is_bounded_in_records_and_bytes(count: int, size: int) -> None:
    world = Calm()
    record = NewRecord(bytes(16), 0, bytes(size), 0)
    world.server.submitted += [bytes(16)] * count
    world.server.step(AppendsSubmitted((record,) * count))
    world.settle()
    batches = [event.batch for event in world.told() if isinstance(event, Committed)]
    assert [len(batch) for batch in batches] == [count - 1 if not size else 1] + (
        [1] if not size else [1, 1]
    )


def test_a_record_above_the_byte_bound_is_a_batch_of_its_own() -> None:
    world = Calm()
    record = NewRecord(bytes(16), 0, bytes(BATCH_BYTES_MAX + 1), 0)
    world.server.submitted += [bytes(16)] * 2
    world.server.step(AppendsSubmitted((record, record)))
    world.settle()
    assert world.server.keeper.high_water_mark == 1


def test_a_lost_replica_leads_to_no_new_session_and_its_return_to_one() -> None:
    """ST-09, ST-13: those that are left go on without a pause."""
    world = Calm()
    world.submit(3)
    world.settle()
    world.now += 100.0
    world.down("c")
    world.settle()
    world.submit(3)
    world.settle()
    world.pass_time(1000.0)
    assert world.sessions() == [0]
    assert world.server.keeper.high_water_mark == 5
    assert world.server.keeper.deadline is None
    world.up("c")
    world.settle()
    assert world.sessions() == [0, 1]
    assert world.metadata.replica_states[ReplicaId("c:1")].session_id == 1
    assert world.replicas[ReplicaId("c:1")].last == 5


def test_what_is_in_flight_is_committed_before_the_session_is_replaced() -> None:
    """ST-01: with a majority left nobody fails."""
    world = Calm()
    world.now += 100.0
    world.submit(10)
    world.down("c")
    world.up("c")
    world.settle()
    told = world.told()
    closed_at = next(i for i, event in enumerate(told) if isinstance(event, StoreClosed))
    before = sum(len(event.batch) for event in told[:closed_at] if isinstance(event, Committed))
    assert before >= BATCHES_IN_FLIGHT_MAX
    assert not any(isinstance(event, AppendsFailed) for event in told)
    assert world.server.keeper.high_water_mark == 9


def test_sessions_are_replaced_ever_more_slowly_while_a_replica_flaps() -> None:
    """ST-42: appends go on meanwhile."""
    world = Calm()
    gaps = []
    for _ in range(12):
        world.down("c")
        world.settle()
        started = world.now
        while (deadline := world.server.keeper.deadline) is not None:
            world.submit()
            world.settle()
            assert not world.server.submitted
            world.now = deadline
            world.server.step()
        world.up("c")
        world.settle()
        gaps.append(world.now - started)
    assert gaps[1] < gaps[3] < gaps[5] < gaps[7]
    assert max(gaps) <= RETRY_SECONDS_MAX
    world.now += RETRY_SECONDS_MAX
    world.down("c")
    world.settle()
    assert world.server.keeper.deadline is None


def test_without_a_majority_appends_wait_and_are_settled_by_the_next_mark() -> None:
    """ST-18: some were stored, some not; the order is kept."""
    world = Calm()
    world.submit(6)
    world.settle(idle=("b:1", "c:1"))
    world.down("b")
    world.down("c")
    world.settle()
    assert isinstance(world.newest(), StoreClosed)
    assert world.server.keeper.high_water_mark is None
    decided = (Committed, AppendsFailed)
    assert not any(isinstance(event, decided) for event in world.told())
    assert len(world.server.submitted) == 6
    world.up("b")
    world.settle()
    assert world.server.submitted == []
    assert len(world.log) + len(world.failed) == 6


def test_after_the_checkpoint_interval_a_new_session_starts_without_delay() -> None:
    """ST-36."""
    world = Calm(1)
    world.close(world.server)
    world.server = server = world.add_server(checkpoint_transactions=20)
    world.settle()
    for _ in range(5):
        world.submit(10)
        world.settle()
    opened = [event.high_water_mark for event in world.told() if isinstance(event, StoreOpened)]
    assert opened == [-1, 19, 39]
    assert server.keeper.high_water_mark == 49
    assert ReadMetadata(0.0) == next(
        effect
        for entry in reversed(world.trace)
        if isinstance(entry, tuple)
        for effect in entry[1:]
        if isinstance(effect, ReadMetadata)
    )


def test_a_changed_assignment_starts_a_session_at_once() -> None:
    """ST-39."""
    world = Calm(4)
    assert len(world.metadata.replica_states) == 4
    world.assigned = world.assigned[1:]
    world.settle()
    assert world.sessions() == [0, 1]
    assert tuple(world.metadata.replica_states) == world.assigned


def test_an_assignment_seen_before_the_session_starts_is_not_forgotten() -> None:
    world = World(0, 4)
    world.assigned = world.assigned[:3]
    server = world.add_server()
    world.coordinate(server, fails=False)
    world.assigned = tuple(world.replicas)[1:]
    world.show_assignment(server)
    for _ in range(500):
        if actions := world.possible():
            world.happen(actions[0])
    assert tuple(world.metadata.replica_states) == world.assigned


def test_a_later_generation_in_the_metadata_ends_the_ownership() -> None:
    """ST-41: nothing more is asked of the coordinator, nothing is claimed about the undecided.

    A keeper that never had a session has nothing to close.
    """
    keeper = SessionKeeper(Generation(3))
    keeper.step([AppendsSubmitted((NewRecord(bytes(16), 0, b"", 0),))], 0.0)
    taken = PartitionMetadata(Generation(4), SessionId(8), {})
    (effect,) = keeper.step([MetadataRead(taken, 2, (A,))], 0.0)
    assert isinstance(effect, LoseOwnership)
    assert keeper.step([], 100.0) == []
    late = AppendsSubmitted((NewRecord(bytes(16), 0, b"", 0),))
    assert keeper.step([late, ReplicasAssigned((A,))], 100.0) == []
    keeper.check_invariants()
    assert keeper.deadline is None
    assert not keeper.closed
    assert keeper.step([CloseRequested()], 100.0) == []
    assert keeper.closed


@pytest.mark.parametrize("stored_count", range(BATCHES_IN_FLIGHT_MAX + 1))
def test_a_server_that_was_replaced_writes_nothing_more_even_with_the_partition_back(
    stored_count: int,
) -> None:
    """ST-03, ST-18, ST-41: what was sent is in the log or not; what waited never gets there."""
    world = Calm()
    old = world.server
    world.submit(BATCHES_IN_FLIGHT_MAX + 5)
    submitted = list(old.submitted)
    idle = tuple(str(replica_id) for replica_id in world.replicas)
    world.settle(idle=idle)
    for wire in old.wires.values():
        for _ in range(stored_count):
            world.deliver_request(wire)
        wire.requests.clear()
        world.sync(wire.replica)
        wire.answers.clear()
    world.server = world.add_server()
    world.settle()
    world.submit(2)
    world.settle()
    for wire in list(old.wires.values()):
        if old.wires.get(wire.link) is wire:
            world.cut(old, wire)
    world.settle()
    assert old.is_fenced
    old.submit(world.new_record())
    old.step(ReplicasAssigned(world.assigned[1:]))
    assert [type(event) for event in world.told(old)] == [StoreOpened, StoreClosed]
    assert old.keeper.deadline is None
    world.close(old)
    world.server = world.add_server()
    world.settle()
    world.submit()
    world.settle()
    assert [type(event) for event in world.told(old)] == [StoreOpened, StoreClosed]
    in_log = [record.request_ids().tobytes() for _, record in sorted(world.log.items())]
    assert in_log[:stored_count] == submitted[:stored_count]
    assert len(in_log) == stored_count + 3
    world.check_log()


def test_appends_that_waited_while_another_server_wrote_are_never_written() -> None:
    """ST-18, ST-41: their locks were checked before the other's records."""
    world = Calm()
    old = world.server
    for name in "abc":
        world.down(name)
    world.submit(3)
    world.server = world.add_server()
    world.coordinate(world.server, fails=False)
    world.coordinate(world.server, fails=False)
    for name in "abc":
        world.up(name)
    world.settle()
    world.submit(2)
    world.settle()
    assert old.is_fenced
    assert not world.server.is_fenced
    assert [type(event) for event in world.told(old)] == [StoreOpened, StoreClosed]
    assert len(old.submitted) == 3
    assert len(world.log) == 2
    world.check_log()


def test_a_server_that_is_replaced_while_its_session_goes_on_closes_once() -> None:
    """ST-05, ST-41: its next append is refused by the replicas."""
    world = Calm()
    old = world.server
    world.server = world.add_server()
    world.settle()
    for _ in range(3):
        old.submit(world.new_record())
        world.settle()
    assert old.is_fenced
    assert [type(event) for event in world.told(old)] == [StoreOpened, StoreClosed]
    assert len(old.submitted) == 3
    world.submit()
    world.settle()
    assert len(world.log) == 1


def effects_of_opening(keeper: SessionKeeper) -> list[KeeperEffect]:
    effects = list(keeper.step([], 0.0))
    assert effects == [ReadMetadata(0.0)]
    effects += keeper.step([MetadataRead(NEW_PARTITION, 0, (A,))], 0.0)
    return effects


def test_a_session_starts_by_compare_and_set() -> None:
    """ST-22: after a failure, which may have been a success, the metadata is read again."""
    keeper = SessionKeeper(Generation(3))
    first = PartitionMetadata(Generation(3), SessionId(0), {})
    assert effects_of_opening(keeper)[-1] == WriteMetadata(first, 0)
    assert keeper.step([MetadataWriteFailed("lost")], 0.0) == [ReadMetadata(0.1)]
    assert keeper.step([MetadataReadFailed("lost")], 0.0) == [ReadMetadata(0.2)]
    for _ in range(10):
        (read,) = keeper.step([MetadataReadFailed("lost")], 0.0)
    assert read == ReadMetadata(METADATA_RETRY_SECONDS_MAX)
    second = PartitionMetadata(Generation(3), SessionId(1), {})
    assert keeper.step([MetadataRead(first, 1, (A,))], 0.0) == [WriteMetadata(second, 1)]
    keeper.step([MetadataWritten(2)], 0.0)
    keeper.check_invariants()


def test_a_partition_without_replicas_waits_for_some() -> None:
    keeper = SessionKeeper(Generation(3))
    keeper.step([], 0.0)
    effects = keeper.step([MetadataRead(NEW_PARTITION, 0, ())], 0.0)
    assert effects == [ReadMetadata(METADATA_RETRY_SECONDS_MAX)]


def test_closing_ends_the_session_and_the_keeper() -> None:
    world = Calm()
    world.submit()
    world.server.step(CloseRequested())
    assert world.newest() == StoreClosed("the partition was closed")
    assert world.server.keeper.closed
    assert world.server.wires == {}
    assert world.server.keeper.step([ReplicasAssigned(())], 0.0) == []


def test_a_recovery_that_only_the_lost_replica_could_help_is_given_up() -> None:
    """Hazard R2: B was lost after it had been cut; C never came."""
    world = Calm()
    world.submit(2)
    world.settle()
    world.down("c")
    world.now += 100.0
    world.settle()
    world.submit(1)
    world.settle(idle=("b:1",))
    world.down("b")
    world.settle()
    assert isinstance(world.newest(), StoreClosed)
    world.up("b")
    world.settle()
    for wire in list(world.server.wires.values()):
        if wire.replica.replica_id == "b:1":
            world.server.step(ReplicaLost(wire.link, "cut"))
    world.up("b")
    for _ in range(50):
        world.settle()
        if (deadline := world.server.keeper.deadline) is not None:
            world.now = deadline
            world.server.step()
    assert world.server.keeper.high_water_mark == TransactionId(2)


@pytest.mark.parametrize("missed", [1, 2, 5])
def test_a_coordinator_that_was_set_back_is_outrun_and_nothing_is_lost(missed: int) -> None:
    """Also where the number that it gives again has begun on the replicas already."""
    world = Calm()
    old = world.metadata
    for _ in range(missed):
        world.submit(2)
        world.settle()
        world.now += 100.0
        world.down("c")
        world.up("c")
        world.pass_time(100.0)
    last = world.sessions()[-1]
    assert last > old.session_id
    written = world.server.keeper.high_water_mark
    assert written is not None
    world.metadata = old
    world.version += 1
    world.server = world.add_server()
    for _ in range(20):
        world.pass_time(30.0)
    assert world.server.keeper.high_water_mark == written
    assert world.metadata.session_id >= last + SESSION_CLIMB
    world.submit(3)
    world.settle()
    assert world.server.keeper.high_water_mark == written + 3


def test_a_coordinator_that_was_set_back_into_the_opening_of_a_session_is_outrun() -> None:
    """Its metadata have the number of the session, and the replica states of the one before."""
    world = Calm()
    before = world.metadata
    world.submit(2)
    world.settle()
    world.down("c")
    world.server = world.add_server()
    world.pass_time(100.0)
    opened = SessionId(world.sessions()[-1])
    assert opened > before.session_id
    world.submit(2)
    world.settle()
    written = world.server.keeper.high_water_mark
    assert written is not None
    world.up("c")
    world.down("b")
    world.metadata = replace(before, session_id=opened)
    world.version += 1
    world.server = world.add_server()
    for _ in range(20):
        world.pass_time(30.0)
    opened_events = [each for each in world.told() if isinstance(each, StoreOpened)]
    assert not opened_events, "b may know of a later session"
    world.up("b")
    for _ in range(20):
        world.pass_time(30.0)
    assert world.server.keeper.high_water_mark == written
    assert world.metadata.session_id >= opened + SESSION_CLIMB


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_a_replica_that_has_promised_a_session_soon_after_an_open_one_comes_back(
    ahead: int,
) -> None:
    """The coordinator was set back, and the majority has missed what it does not know any more."""
    world = Calm()
    world.down("c")
    world.now += 100.0
    world.submit(2)
    world.settle()
    replica = world.replicas[ReplicaId("c:1")]
    replica.announce(SessionId(world.sessions()[-1] + ahead))
    world.up("c")
    for submitted in (0, 0, 0, 0, 0, 0, 0, 0, 2):
        world.now += RETRY_SECONDS_MAX
        world.submit(submitted)
        world.server.step()
        for _ in range(20):  # its refusals would have no end, and no other would get a word in
            world.settle(idle=("c:1",))
            for action in [each for each in world.possible() if each[0] != world.wake][:1]:
                world.happen(action)
    assert world.server.keeper.high_water_mark == 3
    assert replica.last == 3
    assert len(world.sessions()) <= 1 + ahead + 1
