"""The judge of archives: it finds what is wrong with one, and with what a restore makes of it."""

from __future__ import annotations

from random import Random

import pytest

from tests.restore.memory_archive import MemoryArchive, make_archive
from waltz.archive.archive_target import Target
from waltz.archive.commits import commit, create_archive, write_object
from waltz.archive.log_object import ObjectWriter
from waltz.archive.manifest import Manifest
from waltz.restore import restored_nodes
from waltz.restore.carried_nodes import Carried
from waltz.sim.applications.archivist import NOTE, NOTE_DATA, MemoryTarget
from waltz.sim.judges.archives import Log, check_archive
from waltz.sim.judges.replicas import blocks_on_disk, records_on_disk
from waltz.types import PartitionId, TransactionId

COUNTS = [60, 0, 25]


def archived(memory: MemoryArchive) -> MemoryTarget:
    target = MemoryTarget(lambda: 1_790_000_000.0)
    place: Target = target
    archive = create_archive(place, memory.cluster_key)
    files = []
    for partition_id, partition in memory.partitions.items():
        writer = ObjectWriter(memory.cluster_key, partition_id, TransactionId(0))
        writer.add(partition.batch)
        files.append(write_object(place, writer.finish(), "0" * 16))
    nodes = {**memory.coordinator_nodes, f"notes/{NOTE}": NOTE_DATA}
    commit(place, archive.contents, Manifest(0, None, 1, "tests", files=tuple(files), nodes=nodes))
    return target


def log_of(memory: MemoryArchive) -> Log:
    return {
        PartitionId(p): records_on_disk({"0.seg": bytes(128) + memory.log(p, count - 1)})
        for p, count in enumerate(COUNTS)
    }


def wrong(target: MemoryTarget, log: Log, seed: int = 1) -> list[str]:
    cut = {PartitionId(0): TransactionId(30), PartitionId(1): TransactionId(-1)}
    cuts = [{**cut, PartitionId(2): TransactionId(7)}, {**cut, PartitionId(2): TransactionId(99)}]
    return list(check_archive(target, cuts, log, Random(seed)))


def test_a_sound_archive_has_nothing_wrong() -> None:
    memory = make_archive(COUNTS)
    for seed in range(5):
        assert wrong(archived(memory), log_of(memory), seed) == []


def test_another_log_is_found() -> None:
    found = wrong(archived(make_archive(COUNTS, seed=8)), log_of(make_archive(COUNTS)))
    assert any("that are not the log's up to 59" in each for each in found)


def test_an_archive_that_ends_too_early_is_found() -> None:
    memory = make_archive(COUNTS)
    log = {**log_of(memory), PartitionId(1): log_of(memory)[PartitionId(2)][:3]}
    (found,) = {each for each in wrong(archived(memory), log) if each.startswith("archive")}
    assert found == "archive: it has 0 transactions of partition 1, and the log has 3"


def test_a_lost_object_is_found() -> None:
    memory = make_archive(COUNTS)
    target = archived(memory)
    target.delete(next(path for path in target.objects if path.startswith("log/2")))
    (found,) = wrong(target, log_of(memory))
    assert "it is lost" in found


def test_a_note_that_lets_a_sink_go_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = make_archive(COUNTS)
    kept = lambda nodes, lasts, restore_id: Carried(nodes, ())  # noqa: E731
    monkeypatch.setattr(restored_nodes, "carried_notes", kept)
    found = wrong(archived(memory), log_of(memory))
    assert {*found} == {
        f"restore: the note notes/{NOTE} lets a sink go on, as if no row had been lost"
    }


def test_the_bytes_of_records_are_read_as_the_records_are() -> None:
    memory = make_archive(COUNTS)
    data = bytes(128) + memory.log(0, 59)
    found = blocks_on_disk({"/s/0/0.seg": data, "/s/0/0.idx": b"", "/s/1/0.seg": b"x"}, "/s/0")
    assert b"".join(found) == memory.log(0, 59)
    assert len(found) == 60
