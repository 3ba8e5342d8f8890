"""The archiver's machine, by value: what it reads next, when it commits, what a lost race means."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.archive.archives import KEY, NOW
from waltz.archive.archiver import (
    COMMIT_SECONDS_MAX,
    MERGED_FILES,
    RETRY_SECONDS_MIN,
    SEEN_MARKS_MAX,
    SNAPSHOT_SECONDS,
    SWEEP_SECONDS,
    Archiver,
    Ask,
    Commit,
    Committed,
    Copied,
    Copy,
    Effect,
    Event,
    Failed,
    Merge,
    Merged,
    NotCopied,
    Open,
    Opened,
    Phase,
    RaceLost,
    StopAsked,
    Sweep,
    Swept,
    Told,
    joined,
)
from waltz.archive.manifest import (
    ArchivedFile,
    Contents,
    Manifest,
    TimeMark,
    following,
    object_path,
)
from waltz.types import NOTHING, PartitionId, ReplicaId, TransactionId

ZERO, ONE = PartitionId(0), PartitionId(1)
EMPTY = Contents(KEY)
NODE = (ReplicaId("db1:1"), ReplicaId("db2:1"))


def file(
    first: int, end: int, partition: int = 0, *, raw: int = 100, level: int = 0
) -> ArchivedFile:
    path = object_path(partition, first, end, f"{level:016x}")
    return ArchivedFile(
        path, PartitionId(partition), TransactionId(first), TransactionId(end),
        500, raw, 64, "a" * 64, "b" * 64, "c" * 64, level,
    )  # fmt: skip


def copy(partition_id: PartitionId, first: int, end: int) -> Copy:
    return Copy(partition_id, TransactionId(first), TransactionId(end))


def told(*marks: int, nodes: dict[str, bytes] | None = None) -> Told:
    return Told(
        {PartitionId(each): TransactionId(mark) for each, mark in enumerate(marks)}, NOW, nodes
    )


def after(commit: Commit) -> Contents:
    number = commit.before.number + 1
    change = Manifest(
        number, commit.before.digest, NOW, "w", files=commit.files,
        removed=dict.fromkeys(commit.removed, NOW), nodes=commit.nodes,
    )  # fmt: skip
    return following(commit.before, change, f"{number:064x}")


def archiver(*, once: bool = False, partitions: frozenset[PartitionId] | None = None) -> Archiver:
    return Archiver(every_seconds=10, object_bytes=1_000, once=once, partitions=partitions)


def step(machine: Archiver, now: float, *events: Event) -> list[Effect]:
    effects = machine.step(events, now)
    machine.check_invariants()
    return effects


def opened(machine: Archiver, contents: Contents = EMPTY) -> None:
    assert step(machine, 0) == [Open(None)]
    assert step(machine, 0, Opened(contents)) == [Ask(with_nodes=True)]


def waiting(machine: Archiver, *marks: int) -> None:
    """Have everything archived that there is: nothing."""
    opened(machine)
    (effect,) = step(machine, 0, told(*marks, nodes={}))
    assert effect == Sweep(EMPTY)
    assert step(machine, 0, Swept(())) == []
    assert machine.deadline == 10


def test_what_is_committed_is_copied_and_then_named() -> None:
    machine = archiver()
    opened(machine)
    assert step(machine, 0, told(9, -1, nodes={"/a": b"1"})) == [copy(ZERO, 0, 10)]
    (commit,) = step(machine, 1, Copied(file(0, 10), NODE))
    assert commit == Commit(
        EMPTY,
        (file(0, 10),),
        (),
        {
            ONE: (TimeMark(NOTHING, NOW),),  # it was empty; a restore can believe that
            ZERO: (TimeMark(TransactionId(9), NOW),),
        },
        {"/a": b"1"},
        {ZERO: NODE},
    )
    assert isinstance(commit, Commit)
    contents = after(commit)
    assert step(machine, 2, Committed(contents, NOW + 5)) == [Sweep(contents)]
    assert step(machine, 2, Swept(("x",))) == []
    assert (machine.deadline, machine.committed_at, machine.swept) == (12, NOW + 5, 1)
    assert machine.lag_seconds(ZERO, 5) == 0


def test_a_round_copies_of_each_partition_what_one_object_holds() -> None:
    machine = archiver()
    opened(machine)
    assert step(machine, 0, told(9, 4, nodes={})) == [copy(ZERO, 0, 10)]
    assert step(machine, 1, Copied(file(0, 6), NODE)) == [copy(ONE, 0, 5)]
    (commit,) = step(machine, 1, Copied(file(0, 5, 1), NODE))
    assert isinstance(commit, Commit)
    contents = after(commit)
    step(machine, 2, Committed(contents, NOW))
    # Something is left, so nothing is waited for.
    assert step(machine, 2, Swept(())) == [Ask(with_nodes=False)]
    assert step(machine, 3, told(9, 4)) == [copy(ZERO, 6, 10)]


def test_of_two_archivers_the_second_steps_back_and_goes_on() -> None:
    machine = archiver()
    opened(machine)
    step(machine, 0, told(9, nodes={}))
    (commit,) = step(machine, 0, Copied(file(0, 10), NODE))
    assert isinstance(commit, Commit)
    assert step(machine, 1, RaceLost()) == [Open(EMPTY)]
    theirs = after(commit)
    assert step(machine, 1, Opened(theirs)) == [Sweep(theirs)]
    assert step(machine, 1, Swept(())) == [] or machine.phase is Phase.ASKING
    assert machine.races_lost == 1
    # The other one's commit is followed; what it has archived is not archived again.
    assert machine.contents == theirs
    assert step(machine, 11) == [Ask(with_nodes=False)]
    assert step(machine, 11, told(12)) == [copy(ZERO, 10, 13)]


def test_after_a_commit_of_unknown_outcome_the_archive_is_read_again() -> None:
    machine = archiver()
    opened(machine)
    step(machine, 0, told(9, nodes={}))
    step(machine, 0, Copied(file(0, 10), NODE))
    assert step(machine, 1, Failed("no answer")) == []
    assert machine.trouble == "no answer"
    assert step(machine, 1 + RETRY_SECONDS_MIN) == [Open(None)]


def test_pauses_grow_while_it_fails() -> None:
    machine = archiver()
    now, pauses = 0.0, []
    for _ in range(9):
        assert step(machine, now) == [Open(None)]
        step(machine, now, Failed("away"))
        assert machine.deadline is not None
        pauses.append(machine.deadline - now)
        now = machine.deadline
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert machine.failures == 9


def test_a_partition_in_trouble_does_not_hold_up_the_others() -> None:
    machine = archiver()
    opened(machine)
    step(machine, 0, told(9, 4, nodes={}))
    assert step(machine, 0, NotCopied(ZERO, "copies differ", is_difference=True)) == [
        copy(ONE, 0, 5)
    ]
    (commit,) = step(machine, 0, Copied(file(0, 5, 1), NODE))
    assert isinstance(commit, Commit)
    step(machine, 1, Committed(after(commit), NOW))
    assert step(machine, 1, Swept(())) == []
    assert machine.troubles == machine.differences == {ZERO: "copies differ"}
    assert machine.committed_at is None
    assert machine.lag_seconds(ZERO, 7) == 7
    assert step(machine, 11) == [Ask(with_nodes=False)]
    assert step(machine, 11, told(9, 4)) == [copy(ZERO, 0, 10)]


def test_a_trouble_is_told_until_the_partition_is_copied() -> None:
    """A round may take minutes; what the one before has found is as true until then."""
    machine = archiver()
    opened(machine)
    step(machine, 0, told(9, 4, nodes={}))
    step(machine, 0, NotCopied(ZERO, "copies differ", is_difference=True))
    (commit,) = step(machine, 0, Copied(file(0, 5, 1), NODE))
    assert isinstance(commit, Commit)
    step(machine, 0, Committed(after(commit), NOW))
    step(machine, 0, Swept(()))
    assert step(machine, 10) == [Ask(with_nodes=False)]
    assert step(machine, 10, told(9, 4)) == [copy(ZERO, 0, 10)]
    assert machine.troubles == machine.differences == {ZERO: "copies differ"}
    step(machine, 10, Copied(file(0, 10), NODE))
    assert machine.troubles == machine.differences == {}


def test_what_failed_once_is_not_told_of_a_later_round() -> None:
    machine = archiver()
    opened(machine)
    step(machine, 0, Failed("the coordinator is away"))
    assert machine.trouble == "the coordinator is away"
    step(machine, 1)
    step(machine, 1, told(9, nodes={}))
    step(machine, 1, NotCopied(ZERO, "no copy"))
    step(machine, 1, Swept(()))
    assert machine.phase is Phase.WAITING
    assert not machine.trouble
    assert machine.troubles == {ZERO: "no copy"}


def test_a_mark_below_the_archive_is_told_and_nothing_is_taken_back() -> None:
    machine = archiver()
    contents = following(EMPTY, Manifest(0, None, NOW, "w", files=(file(0, 10),)), "0" * 64)
    opened(machine, contents)
    assert step(machine, 0, told(8, nodes={})) == [Sweep(contents)]
    assert "the log has lost data" in machine.troubles[ZERO]
    assert machine.committed_at is None


def test_a_mark_that_nobody_tells_is_a_trouble_and_not_a_lag_of_nothing() -> None:
    machine = archiver()
    opened(machine)
    step(machine, 0, Told({}, NOW, {}, {ZERO: "no server"}))
    assert machine.troubles == {ZERO: "no server"}
    assert machine.lag_seconds(ZERO, 5) is None


def test_only_chosen_partitions_are_archived() -> None:
    machine = archiver(partitions=frozenset({ONE}))
    opened(machine)
    assert step(machine, 0, told(9, 4, nodes={})) == [copy(ONE, 0, 5)]


def test_nodes_are_read_now_and_then_and_kept_if_they_have_changed() -> None:
    machine = archiver()
    waiting(machine, -1)
    assert step(machine, 10) == [Ask(with_nodes=False)]
    assert step(machine, 10, told(-1)) == []
    assert step(machine, SNAPSHOT_SECONDS) == [Ask(with_nodes=True)]
    (commit,) = step(machine, SNAPSHOT_SECONDS, told(-1, nodes={"/a": b"2"}))
    assert isinstance(commit, Commit)
    assert commit.nodes == {"/a": b"2"}


def test_orphans_are_swept_once_an_hour() -> None:
    machine = archiver()
    waiting(machine, -1)
    step(machine, SWEEP_SECONDS - 1)
    assert step(machine, SWEEP_SECONDS - 1, told(-1, nodes={})) == []
    step(machine, SWEEP_SECONDS + 9)
    assert step(machine, SWEEP_SECONDS + 9, told(-1)) == [Sweep(EMPTY)]


def test_small_objects_are_joined_once_there_are_eight() -> None:
    machine = archiver()
    before = EMPTY
    for number in range(MERGED_FILES - 1):
        change = Manifest(number, before.digest, NOW, "w", files=(file(number, number + 1),))
        before = following(before, change, f"{number:064x}")
    opened(machine, before)
    step(machine, 0, told(7, nodes={}))
    (commit,) = step(machine, 0, Copied(file(7, 8), NODE))
    assert isinstance(commit, Commit)
    contents = after(commit)
    (merge,) = step(machine, 0, Committed(contents, NOW))
    assert merge == Merge(contents.files[ZERO])
    one = file(0, 8, raw=800, level=1)
    (second,) = step(machine, 0, Merged(one, tuple(each.path for each in contents.files[ZERO])))
    assert isinstance(second, Commit)
    assert (second.files, len(second.removed), second.time_marks) == ((one,), 8, {})
    merged = after(second)
    assert merged.files[ZERO] == (one,)
    assert step(machine, 0, Committed(merged, NOW)) == [Sweep(merged)]


def test_objects_that_together_are_too_large_stay() -> None:
    files = [file(each, each + 1, raw=200) for each in range(8)]
    assert joined(files, 1_600) == tuple(files)
    assert joined(files, 1_599) is None
    assert joined(files[1:], 10_000) is None
    assert joined([*files[:7], file(7, 8, raw=1, level=1)], 10_000) is None


def test_copies_that_may_be_swept_are_not_committed() -> None:
    machine = archiver()
    opened(machine)
    step(machine, 0, told(9, 4, nodes={}))
    step(machine, 0, Copied(file(0, 10), NODE))
    assert step(machine, COMMIT_SECONDS_MAX + 1, Copied(file(0, 5, 1), NODE)) == []
    assert machine.trouble is not None
    assert step(machine, COMMIT_SECONDS_MAX + 9) == [Ask(with_nodes=True)]


def test_a_stop_waits_for_a_commit_and_for_nothing_else() -> None:
    machine = archiver()
    opened(machine)
    step(machine, 0, told(9, nodes={}))
    assert step(machine, 0, StopAsked()) == []
    assert machine.closed
    for outcome in (Failed("x"), RaceLost(), Committed(EMPTY, NOW)):
        machine = archiver()
        opened(machine)
        step(machine, 0, told(9, nodes={}))
        step(machine, 0, Copied(file(0, 10), NODE))
        assert step(machine, 0, StopAsked()) == []
        assert not machine.closed
        assert step(machine, 0, outcome) == []
        assert machine.closed


def test_once_ends_when_all_is_archived_or_something_is_wrong() -> None:
    machine = archiver(once=True)
    opened(machine)
    step(machine, 0, told(9, nodes={}))
    (commit,) = step(machine, 0, Copied(file(0, 10), NODE))
    assert isinstance(commit, Commit)
    step(machine, 0, Committed(after(commit), NOW))
    step(machine, 0, Swept(()))
    assert machine.closed
    assert not machine.troubles
    machine = archiver(once=True)
    opened(machine)
    step(machine, 0, told(9, nodes={}))
    step(machine, 0, NotCopied(ZERO, "no copy"))
    step(machine, 0, Swept(()))
    assert machine.closed
    assert machine.troubles


def test_once_that_is_told_to_stop_is_not_said_to_have_archived_everything() -> None:
    machine = archiver(once=True)
    assert step(machine, 0, StopAsked()) == []
    assert machine.trouble is not None
    machine = archiver(once=True)
    opened(machine)
    step(machine, 0, told(9, nodes={}))
    step(machine, 0, StopAsked())
    assert machine.closed
    assert machine.trouble is not None


def test_while_more_is_to_be_archived_a_commit_is_no_success() -> None:
    machine = archiver()
    opened(machine)
    step(machine, 0, told(9, nodes={}))
    (commit,) = step(machine, 0, Copied(file(0, 5), NODE))
    assert isinstance(commit, Commit)
    step(machine, 0, Committed(after(commit), NOW + 1))
    assert machine.committed_at is None
    step(machine, 0, Swept(()))
    step(machine, 0, told(9))
    (commit,) = step(machine, 0, Copied(file(5, 10), NODE))
    assert isinstance(commit, Commit)
    step(machine, 0, Committed(after(commit), NOW + 2))
    assert machine.committed_at == NOW + 2


def test_the_lag_is_told_however_many_marks_have_come() -> None:
    machine = archiver()
    opened(machine)
    for number in range(3 * SEEN_MARKS_MAX):
        step(machine, number, told(number, nodes={}))
        step(machine, number, NotCopied(ZERO, "away"))
        if machine.phase is Phase.SWEEPING:
            step(machine, number, Swept(()))
        if machine.phase is Phase.COMMITTING:
            step(machine, number, Failed("away"))
            machine.contents = EMPTY
        machine.phase, machine.deadline = Phase.ASKING, None
    assert machine.lag_seconds(ZERO, 9_000) == 9_000


@given(st.lists(st.integers(0, 9), max_size=60), st.randoms(use_true_random=False))
def test_whatever_happens_it_archives_each_transaction_once(choices: list[int], random) -> None:  # type: ignore[no-untyped-def]
    """A world in which anything fails: manifests join up, and nothing above a mark is copied."""
    machine = archiver()
    world = EMPTY
    mark, now = -1, 0.0
    pending = step(machine, now)
    for choice in choices:
        mark += random.randrange(4)
        if not pending:
            assert machine.deadline is not None
            now = machine.deadline
            pending = step(machine, now)
            continue
        (effect,) = pending
        event: Event
        match effect:
            case _ if choice == 0:
                event = Failed("by chance")
            case Open():
                event = Opened(world)
            case Ask():
                event = told(mark, nodes={})
            case Copy(partition, first, end):
                assert end <= mark + 1
                stop = random.randrange(first, end) + 1
                event = Copied(file(first, stop, partition), NODE)
                if choice == 1:
                    event = NotCopied(partition, "by chance")
            case Merge(files):
                made = file(files[0].first, files[-1].end, raw=800, level=files[0].level + 1)
                event = Merged(made, tuple(each.path for each in files))
            case Commit() as commit:
                if commit.before != world:
                    event = RaceLost()
                elif choice == 2:  # another one was first
                    change = Manifest(world.number + 1, world.digest, NOW, "other")
                    world = following(world, change, f"{world.number + 1:064x}")
                    event = RaceLost()
                else:
                    world = after(commit)  # raises if it does not join up
                    event = Failed("answer lost") if choice == 3 else Committed(world, NOW)
            case Sweep():
                event = Swept(())
        pending = step(machine, now, event)
    assert world.end(ZERO) <= mark + 1
