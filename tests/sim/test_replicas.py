"""Disks are read straight from the layout, and what is wrong on them is found."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest

from waltz.record import NewRecord, pack_records, request_id_bytes
from waltz.sim.judges.history import ContextVerdict, FedRecord, History
from waltz.sim.judges.payload import Payload
from waltz.sim.judges.replicas import (
    FILE_HEADER_BYTES,
    Marks,
    MarkWatch,
    ReplicaDisk,
    agreement,
    held_by_enough,
    leftovers_in,
    records_on_disk,
    replica_on,
    settledness,
    tidiness,
)
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

P = PartitionId(0)


def fed(transaction_id: int, context: int) -> FedRecord:
    return FedRecord(
        TransactionId(transaction_id),
        RequestId(ClientId(1), Generation(1), P, context),
        context,
        Payload(context, 1, padding=b"x" * context).encode(),
    )


LOG = [fed(0, 1), fed(1, 2), fed(2, 3)]


def replica(records: list[FedRecord], marks: Marks = Marks(1, -1, -1)) -> ReplicaDisk:  # noqa: B008
    return ReplicaDisk({P: records}, {P: marks})


# Reading


def segment(first: int, contexts: list[int]) -> bytes:
    new = [
        NewRecord(request_id_bytes(item.request_id), item.header, item.data, crc32(item.data))
        for item in (fed(0, context) for context in contexts)
    ]
    return bytes(FILE_HEADER_BYTES) + pack_records(TransactionId(first), new).block


def control_entry(number: int, *structs: tuple[int, Marks]) -> bytes:
    entry = struct.pack(">i", number)
    for sequence, marks in structs:
        body = struct.pack(">qqqii", *marks, 5, sequence)
        entry += body + struct.pack(">I", crc32(body))
    return entry


def test_segment_files_are_read_in_order_of_their_names() -> None:
    files = {
        "0000000000000000002.seg": segment(2, [3]),
        "0000000000000000000.seg": segment(0, [1, 2]),
        "0000000000000000000.idx": b"whatever",
    }
    assert records_on_disk(files) == LOG


def test_reading_ends_at_damage_and_at_every_torn_tail() -> None:
    whole = segment(0, [1, 2])
    for size in range(FILE_HEADER_BYTES, len(whole)):
        assert len(records_on_disk({"0000000000000000000.seg": whole[:size]})) < 2
    for offset in range(FILE_HEADER_BYTES, len(whole)):
        damaged = bytearray(whole)
        damaged[offset] ^= 1
        assert len(records_on_disk({"0000000000000000000.seg": bytes(damaged)})) < 2


def test_bytes_after_the_last_record_and_wrong_index_entries_are_left_over() -> None:
    stem, whole = "0000000000000000000", segment(0, [1, 2])
    first = FILE_HEADER_BYTES
    second = len(segment(0, [1]))

    def found(data: bytes, *entries: int) -> list[str]:
        index = bytes(FILE_HEADER_BYTES) + struct.pack(f">{len(entries)}q", *entries)
        return list(leftovers_in({f"{stem}.seg": data, f"{stem}.idx": index}))

    assert found(whole, first, second) == []
    assert found(whole, first, 0) == found(whole) == []
    assert found(whole + b"torn", first) == [f"{stem}.seg has 4 bytes after its 2 records"]
    assert found(whole, first, second, 0) == []
    assert found(whole, first, first) == [f"{stem}.idx says 128 of record 1; it is at {second}"]
    assert found(whole, first, second, 900) == [f"{stem}.idx says 900 of record 2; it is at None"]
    replicas = {"storage-0": ReplicaDisk({}, {}, {P: {f"{stem}.seg": whole + b"torn"}})}
    (violation,) = tidiness(replicas, {P: ["storage-0"]})
    assert violation == (
        f"I12 convergence: storage-0, partition 0: {stem}.seg has 4 bytes after its 2 records"
    )
    assert tidiness(replicas, {P: []}) == []


def test_a_directory_is_read_with_its_records_and_marks() -> None:
    older, newer = Marks(1, 5, 5), Marks(2, 6, 7)
    control = bytes(FILE_HEADER_BYTES)
    control += control_entry(0, (8, newer), (7, older))
    control += control_entry(1, (7, older), (8, newer))[:-1] + b"?"
    control += control_entry(2, (7, older), (8, newer))[:-40] + bytes(40)
    disk = SimulatedDisk(
        contents={
            "/storage": None,
            "/storage/waltz-storage.ctl": control,
            "/storage/0": None,
            "/storage/0/0000000000000000000.seg": segment(0, [1, 2, 3]),
            "/storage/0/0000000000000000000.idx": b"",
        }
    )
    found = replica_on(disk.contents(), "/storage", [PartitionId(number) for number in range(4)])
    assert found.records == {0: LOG, 1: [], 2: [], 3: []}
    assert found.marks == {0: newer, 1: older}


def test_what_is_durable_is_what_was_synced() -> None:
    disk = SimulatedDisk(["/storage"])
    file = disk.open("/storage/a", create=True)
    disk.sync_directory("/storage")
    disk.open("/storage/b", create=True)
    file.write_at(0, b"synced")
    file.sync()
    file.write_at(0, b"hasty?")
    assert disk.files.durable_contents() == {"/": None, "/storage": None, "/storage/a": b"synced"}
    assert disk.content("/storage/a") == b"hasty?"


# Judgement


def test_replicas_that_differ_are_found() -> None:
    assert agreement({"a": replica(LOG)}, {P: LOG}, {P: "a"}) == []
    for records in ([*LOG[:2], fed(2, 1)], LOG[:2], []):
        replicas = {"a": replica(LOG), "b": replica(records)}
        (violation,) = agreement(replicas, {P: LOG}, {P: "ab"})
        assert violation.startswith("I2 agreement: b")
        assert agreement(replicas, {P: LOG}, {P: "a"}) == []


def test_uncommitted_records_beyond_the_log_are_no_violation() -> None:
    assert agreement({"a": replica([*LOG, fed(3, 1)])}, {P: LOG}, {P: "a"}) == []


def test_a_change_of_replicas_that_does_not_come_to_its_end_is_found() -> None:
    assert settledness({P: {"a", "b"}}, {P: {"b", "a"}}) == []
    for members in ({"a"}, {"a", "b", "c"}, set[str]()):
        (violation,) = settledness({P: members}, {P: {"a", "b"}})
        assert violation.startswith("I12 convergence: the metadata of partition 0 names")


def committed_history() -> History:
    history = History()
    for _ in LOG:
        history.end(history.submit("client", P), ContextVerdict.COMMITTED)
    return history


def test_a_committed_transaction_must_lie_on_a_majority_of_disks() -> None:
    history, shorter = committed_history(), replica(LOG[:2])
    replicas = {"a": replica(LOG), "b": replica(LOG), "c": shorter}
    assert held_by_enough(history, replicas, {P: "abc"}) == []
    (violation,) = held_by_enough(history, replicas | {"b": shorter}, {P: "abc"})
    assert violation.startswith("I1 durability: context 3")
    assert "1 of 3" in violation


def test_those_that_are_no_members_count_for_nothing() -> None:
    history, shorter = committed_history(), replica(LOG[:2])
    replicas = {"a": replica(LOG), "b": replica(LOG), "c": shorter}
    assert held_by_enough(history, replicas, {P: "a"}) == []
    (violation,) = held_by_enough(history, replicas, {P: "bc"})
    assert "1 of 2" in violation


def test_of_disks_that_were_harmed_less_is_asked() -> None:
    history, shorter = committed_history(), replica(LOG[:2])
    replicas = {"a": replica(LOG), "b": shorter, "c": shorter}
    assert held_by_enough(history, replicas, {P: "abc"}, harmed_count=1) == []
    assert held_by_enough(history, replicas | {"a": shorter}, {P: "abc"}, harmed_count=1)


def test_what_nobody_was_promised_may_lie_anywhere() -> None:
    history = History()
    history.end(history.submit("client", P), ContextVerdict.FAILED)
    assert held_by_enough(history, {"a": replica([])}, {P: "a"}) == []


FIRST = Marks(session_id=3, low_water_mark=0, local_low_water_mark=0)


def watched(
    *looks: ReplicaDisk, log: list[FedRecord] = LOG, harmed: tuple[str, ...] = ()
) -> list[str]:
    watch = MarkWatch()
    for look in looks:
        watch.look({"a": look}, harmed)
    return watch.judge({P: log})


def test_marks_that_grow_are_right() -> None:
    later = FIRST._replace(session_id=4, local_low_water_mark=2)
    assert watched(replica(LOG[:2], FIRST), replica(LOG, later)) == []


@pytest.mark.parametrize("field", Marks._fields)
def test_a_mark_that_falls_is_found(field: str) -> None:
    fallen = FIRST._replace(**{field: getattr(FIRST, field) - 1})
    (violation,) = watched(replica(LOG, FIRST), replica(LOG, fallen))
    assert violation.startswith("I10 mark order: a went from")


def test_the_marks_of_one_that_was_written_off_are_not_held_to_what_was_there() -> None:
    watch = MarkWatch()
    watch.look({"a": replica(LOG, FIRST)}, ())
    watch.look({"a": replica([], FIRST._replace(local_low_water_mark=-1))}, (), {("a", P)})
    assert watch.judge({P: LOG}) == []


def test_a_mark_above_what_is_there_is_found() -> None:
    assert watched(replica([], FIRST))[0].startswith("I10 mark order: a holds 0")


def test_a_mark_above_the_end_of_the_log_is_found() -> None:
    marks = FIRST._replace(low_water_mark=3)
    assert watched(replica(LOG, marks))[0].startswith("I10 mark order: a says")


def test_what_changes_below_a_mark_is_found() -> None:
    changed = [fed(0, 3), *LOG[1:]]
    assert "has changed" in watched(replica(LOG, FIRST), replica(changed, FIRST))[0]
    assert "held other" in watched(replica(changed, FIRST))[0]


def test_disks_that_were_harmed_are_not_watched() -> None:
    assert watched(replica([], FIRST), harmed=("a",)) == []
