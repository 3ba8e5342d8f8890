"""Every state that a power cut can leave of a storage directory is opened, holds what was promised,
and is worked with (SN-09, C4, C6). `make crash-states` does the same with ten times as many."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from proofs.crash_states import (
    Create,
    Image,
    RecordingDisk,
    Sync,
    SyncDirectory,
    crash_states,
    skip_syncs,
)
from tests.shares import one_in
from tests.storage import crash_states as subject
from tests.storage.crash_states import judge, judge_recipe, main
from tests.storage.recorded_work import (
    SCRIPT,
    Found,
    Node,
    Promise,
    Workload,
    new_records,
    read_log,
    record,
)
from tests.storage.support import DIRECTORY, fresh_disk, random, t
from waltz.errors import WaltzError
from waltz.record import RecordBatch
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.drain import Drain
from waltz.storage.log.damage import Damage
from waltz.storage.partition_replica import StoragePartition
from waltz.types import NO_SESSION, PartitionId, SessionId
from waltz.wire.storage_protocol import AppendRecordsRequest, SuccessResponse

STATES_PER_STEP = 40
SEEDS = dict.fromkeys((*range(9), *range(10, 16)), 800) | {9: 200}
"""How many distinct states each has at least; most have some thousand."""

STATES_PER_STEP_SHORT = 3


def assert_no_state_breaks_a_promise(seed: int, states_per_step: int) -> None:
    tally = judge(seed, record(seed), states_per_step=states_per_step)
    assert [str(violation) for violation in tally.violations[:5]] == []
    assert len(tally.digests) >= SEEDS[seed]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_a_power_cut_leaves_is_opened_holds_what_was_promised_and_goes_on(
    seed: int,
) -> None:
    assert_no_state_breaks_a_promise(seed, STATES_PER_STEP)


@pytest.mark.parametrize("seed", one_in(2, [0, 8]))
def test_some_states_of_a_power_cut_are_opened_hold_what_was_promised_and_go_on(seed: int) -> None:
    assert_no_state_breaks_a_promise(seed, STATES_PER_STEP_SHORT)


def test_a_workload_does_everything() -> None:
    for seed in (0, 1):
        workload = record(seed)
        assert {action.__name__ for action in SCRIPT} <= set(workload.kinds)
        made = [step.path for step in workload.trace if isinstance(step, Create)]
        assert len([path for path in made if path.endswith(".seg")]) > 4
        assert workload.promised(0) == workload.promises[0][1]
        assert workload.promised(len(workload.trace)) == workload.promises[-1][1]


def kind_of(path: str) -> str:
    """What a path stands for: digits are only numbers of partitions and records."""
    return re.sub(r"\d+", "N", path.removeprefix("/storage")).removesuffix(".new") or "/"


def skipping(workload: Workload, kind: str) -> Workload:
    return replace(workload, trace=skip_syncs(workload.trace, lambda path: kind_of(path) == kind))


KINDS = (
    "/",
    "/N",
    "/N/N.idx",
    "/N/N.seg",
    "/waltz-storage.ctl",
    "/waltz-storage.node",
    "/waltz-storage.trace",
)


def test_all_that_is_ever_synced_is_of_a_known_kind() -> None:
    steps = [step for step in record(1).trace if isinstance(step, Sync | SyncDirectory)]
    assert {kind_of(step.path) for step in steps} == set(KINDS)


@pytest.mark.parametrize("kind", one_in(3, KINDS))
def test_a_sync_left_out_is_found(kind: str) -> None:
    """Whatever kind of file or directory is not synced: the check can fail."""
    tally = judge(1, skipping(record(1), kind), states_per_step=8, violations_max=1)
    assert tally.violations, f"syncs of {kind} are not needed"


def test_a_violation_names_the_state_that_shows_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = skipping(record(1), "/N/N.seg")
    tally = judge(1, broken, states_per_step=4)
    monkeypatch.setattr(subject, "record", lambda seed: broken)
    for violation in (tally.violations[0], tally.violations[-1]):
        assert violation.text in judge_recipe(1, violation.recipe)
    violation = tally.violations[0]
    assert str(violation).startswith(f"--seed 1 --state {violation.recipe}: partition ")
    assert main(["--seed", "1", "--state", violation.recipe]) == 1
    assert violation.text in capsys.readouterr().out.splitlines()
    assert main(["--jobs", "1", "--states-per-step", "2"]) == 1
    *shown, summary = capsys.readouterr().out.splitlines()
    assert re.search(r"in \d+ s: [\d,]+ violations$", summary)
    assert any(
        line.startswith("python -m tests.storage.crash_states --seed 0 --state") for line in shown
    )


def test_a_state_that_is_cut_again_while_it_is_opened_has_a_name_too() -> None:
    assert judge_recipe(1, "40:0") == []
    assert judge_recipe(1, "40:1/1:1") == []


def test_the_command_counts_distinct_states_and_succeeds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--states", "100", "--states-per-step", "1", "--jobs", "2"]) == 0
    summary = capsys.readouterr().out.splitlines()[-1]
    found = re.fullmatch(
        r"([\d,]+) distinct states, judged ([\d,]+) times, in \d+ s: 0 violations", summary
    )
    assert found
    assert int(found[1].replace(",", "")) >= 100
    assert main(["--seed", "0", "--state", "12:0"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out


def test_a_promise_between_two_answers_allows_all_in_between() -> None:
    promise = Promise((b"abc", b"abcdef", b"ab"), ("one", "two"), SessionId(2), SessionId(4))
    for log in (b"abc", b"abcd", b"abcdef", b"ab"):
        assert promise.breach(Found(log, "two", SessionId(3))) is None
    for log in (b"a", b"abX", b"abcdefg", b""):
        breach = promise.breach(Found(log, "two", SessionId(3)))
        assert breach is not None
        assert breach.startswith("promised 3 to 6 to 2 bytes of records; found ")
    settled = replace(promise, logs=(b"abc",))
    assert settled.breach(Found(b"abc", "one", SessionId(2))) is None
    assert settled.breach(Found(b"ab", "one", SessionId(2))) == (
        "promised 3 bytes of records; found 2, right up to 2"
    )


def test_a_promise_covers_marks_fence_and_everything_that_must_never_be() -> None:
    promise = Promise((b"",), ("one",), SessionId(2), SessionId(4))
    assert promise.breach(Found(b"", "two", SessionId(3))) == "promised one; found two"
    for session in (SessionId(1), SessionId(5), NO_SESSION):
        assert "session 2 was answered, 4 the highest that asked" in str(
            promise.breach(Found(b"", "one", session))
        )
    assert promise.breach(Found(problem="damage")) == "damage"


# Damage and its repair, interrupted


def damage_flipped(disk: SimulatedDisk, path: str) -> None:
    """A byte in the middle of a segment."""
    content = disk.content(path)
    place = len(content) // 2
    disk.damage(path, place, bytes([content[place] ^ 0x10]))


def damage_lost(disk: SimulatedDisk, path: str) -> None:
    disk.remove(path)
    disk.sync_directory(f"{DIRECTORY}/0")


def damage_header(disk: SimulatedDisk, path: str) -> None:
    disk.damage(path, 0, bytes(128))


def found_damage(partition: StoragePartition) -> Damage:
    """All that a scrub finds."""
    position = t(0)
    while position < partition.log.next_transaction_id:
        position = partition.scrub(position, 1 << 20).next_transaction_id
    return partition.log.damage


def mend(partition: StoragePartition, whole: RecordBatch) -> None:
    for first, following in partition.log.damage:
        partition.writer.repair(whole.slice(t(first), following - first))


def look_at_damage(image: Image, whole: RecordBatch, lost: Damage, *, is_mended: bool) -> None:
    """Only what was lost may be damaged, none of it once it is mended, and it can be repaired."""
    disk = image.disk()
    partition = Node(disk).partitions[0]
    assert partition.damage is None
    damaged = found_damage(partition)
    assert {n for first, end in damaged for n in range(first, end)} <= {
        n for first, end in lost for n in range(first, end)
    }
    assert not (is_mended and damaged)
    assert partition.log.next_transaction_id == len(whole)
    for number in range(len(whole)):
        if not any(first <= number < following for first, following in damaged):
            records = partition.log.records.read(t(number), count_max=1, bytes_max=1)
            assert records == whole.slice(t(number), 1)
    mend(partition, whole)
    assert partition.log.damage == ()
    again = Node(disk.crash_clone(random(image.digest))).partitions[0]
    assert read_log(again) == whole.block
    assert found_damage(again) == ()


@pytest.mark.parametrize("damage", [damage_flipped, damage_lost, damage_header])
@pytest.mark.parametrize("segment", [0, 1, -1])
def test_a_repair_cut_short_leaves_what_can_be_repaired(
    damage: Callable[[SimulatedDisk, str], None], segment: int
) -> None:
    """The last segment too: its index proves what was in it. C4."""
    disk = fresh_disk()
    node = Node(disk)
    partition = node.partitions[0]
    whole = new_records(0, [*[40, 600, 200, 900, 100, 100, 1000] * 2, 700, 600, 50, 40], 1)
    partition.announce(SessionId(0))
    (answer,) = Drain(
        partition, [AppendRecordsRequest(SessionId(0), 1, PartitionId(0), whole, False)]
    ).run()
    assert isinstance(answer, SuccessResponse), answer
    node.close()
    names = [name for name in disk.list_directory(f"{DIRECTORY}/0") if name.endswith(".seg")]
    assert len(names) == 3
    damage(disk, f"{DIRECTORY}/0/{names[segment]}")
    recording = RecordingDisk(SimulatedDisk(contents=disk.contents()))
    partition = Node(recording).partitions[0]
    lost = found_damage(partition)
    assert lost
    mend(partition, whole)
    mended = len(recording.trace)
    partition.close()
    digests: set[tuple[bytes, bool]] = set()
    for state in crash_states(recording.start, recording.trace, states_per_step=60, seed=0):
        is_mended = state.point.steps >= mended
        if (state.digest, is_mended) not in digests:
            digests.add((state.digest, is_mended))
            try:
                look_at_damage(state.image, whole, lost, is_mended=is_mended)
            except (AssertionError, WaltzError, OSError) as error:
                raise AssertionError(
                    f"state {state.point} of {len(recording.trace)} steps"
                ) from error
    assert len(digests) >= 8
