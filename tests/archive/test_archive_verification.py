"""Whatever is changed in an archive is found, and never handed out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from tests.archive.archives import KEY, NOW, OTHER_KEY, add, batch
from tests.archive.listed_log import ListedLog
from tests.archive.test_archive import join_all
from waltz.archive.archive import HINT, read_archive
from waltz.archive.archive_target import BucketTarget, Listed, Target
from waltz.archive.archive_verification import (
    NamedObject,
    Records,
    Verification,
    judged_object,
    named_objects,
    verify,
)
from waltz.archive.commits import commit
from waltz.archive.log_object import ObjectWriter
from waltz.archive.manifest import Manifest, manifest_path
from waltz.errors import ArchiveDamagedError, CorruptionError, WaltzError
from waltz.types import PartitionId, TransactionId

ZERO = PartitionId(0)


def memory_target() -> Target:
    return BucketTarget("memory:", MemoryStore())


def small_archive(key: object = KEY, salt: str = "") -> Target:
    """Two partitions with the same number of records, in three objects and two manifests."""
    target = memory_target()
    add(target, {0: [(0, 6)], 1: [(0, 6)]}, size=4, key=key, salt=salt)  # type: ignore[arg-type]
    add(target, {0: [(6, 9)]}, now=NOW + 1, size=4, key=key, salt=salt)  # type: ignore[arg-type]
    return target


def objects_of(target: Target) -> dict[str, bytes]:
    names = [each.path for each in target.list("log")]
    names += [each.path for each in target.list("manifests")]
    return {name: target.get(name, 1 << 20) for name in [*names, "archive.json"]}


def handed_out(target: Target) -> dict[int, bytes]:
    """Return what each partition gives before damage is met, if anything."""
    try:
        archive = read_archive(target)
    except WaltzError:
        return {}
    found = {}
    for partition in archive.partitions:
        parts: list[bytes] = []
        try:
            parts += archive.blocks(partition, 0, archive.end(partition))
        except ArchiveDamagedError:
            pass
        found[int(partition)] = b"".join(parts)
    return found


def expect_nothing_wrong_handed_out(target: Target, what: str) -> None:
    for partition, found in handed_out(target).items():
        good = batch(0, 9 if partition == 0 else 6, partition=partition, size=4).block
        assert good.startswith(found), what


def is_found(target: Target) -> bool:
    return verify(target).verdict is False


def changes(data: bytes) -> Iterator[bytes]:
    for place in range(len(data)):
        yield data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_a_sound_archive_is_right(tmp_path: Path) -> None:
    target = small_archive()
    found = verify(target, log=ListedLog({0: 8, 1: 5}, size=4), replicas=True)
    assert (found.verdict, found.findings, found.unknown) == (True, [], [])
    assert (found.manifests, found.objects, found.transactions, found.orphans) == (2, 3, 15, 0)
    assert found.compared == ["node-0:1", "node-1:1", "node-2:1"]


def test_every_changed_byte_is_found_and_never_handed_out() -> None:
    target = small_archive()
    for name, data in objects_of(target).items():
        if name == HINT:
            continue  # it has no data: an archive without it is whole
        for place, changed in enumerate(changes(data)):
            target.put(name, changed)
            what = f"byte {place} of {name}"
            expect_nothing_wrong_handed_out(target, what)
            assert is_found(target), what
        target.put(name, data)
    assert verify(target).verdict is True


def test_every_cut_is_found_and_never_handed_out() -> None:
    target = small_archive()
    for name, data in objects_of(target).items():
        if name == HINT:
            continue  # it has no data: an archive without it is whole
        for length in range(0, len(data) - 1, 1 if name.startswith("log") else 7):
            target.put(name, data[:length])
            assert is_found(target), f"{name} cut to {length} bytes"
            expect_nothing_wrong_handed_out(target, name)
        target.delete(name)
        assert is_found(target), name
        expect_nothing_wrong_handed_out(target, name)
        target.put(name, data)


def test_objects_in_each_others_place_are_found() -> None:
    target, other = small_archive(), small_archive(OTHER_KEY)
    objects = {name: data for name, data in objects_of(target).items() if name.startswith("log")}
    for name, data in objects.items():
        foreign = [each for each in objects.values() if each != data]
        foreign.append(other.get(name, 1 << 20))
        for each in foreign:
            target.put(name, each)
            assert is_found(target), name
            expect_nothing_wrong_handed_out(target, name)
        target.put(name, data)


def test_manifests_of_another_archive_are_found() -> None:
    target, other, twin = small_archive(), small_archive(OTHER_KEY), small_archive(salt="x")
    for number in (0, 1):
        path = manifest_path(number)
        kept = target.get(path, 1 << 20)
        for foreign in (other, twin):
            target.put(path, foreign.get(path, 1 << 20))
            assert is_found(target)
        target.put(path, kept)


def test_a_lost_last_manifest_is_found_by_the_hint() -> None:
    target = small_archive()
    target.delete(manifest_path(1))
    found = verify(target)
    assert [each.text for each in found.findings] == ["manifest 1 was written and is lost"]


class BusyTarget(BucketTarget):
    """An archiver commits as soon as the manifests were listed."""

    is_busy = False

    def list(self, prefix: str, after: str | None = None) -> Iterator[Listed]:
        found = [*super().list(prefix, after)]
        if prefix == "manifests" and self.is_busy:
            self.is_busy = False
            add(self, {0: [(9, 12)]}, now=NOW + 2, size=4)
        yield from found


def test_a_commit_during_a_verification_is_no_manifest_that_is_lost() -> None:
    target = BusyTarget("memory:", MemoryStore())
    add(target, {0: [(0, 9)]}, size=4)
    target.is_busy = True
    found = verify(target)
    assert (found.verdict, found.findings, found.manifests) == (True, [], 1)
    assert verify(target).manifests == 2


def test_an_object_that_was_replaced_during_a_verification_is_not_said_to_be_lost() -> None:
    target = memory_target()
    archive = add(target, {0: [(0, 6), (6, 9)]})
    found = verify(target, announce=lambda total: join_all(target, archive))
    assert (found.findings, found.verdict, found.transactions) == ([], None, 0)
    assert len(found.unknown) == 2
    assert "was replaced by a larger object meanwhile" in found.unknown[0]
    assert verify(target).verdict is True


@pytest.mark.parametrize("name", ["archive.json", manifest_path(1)])
def test_json_that_is_nested_too_deeply_is_found(name: str) -> None:
    target = small_archive()
    target.put(name, b"[" * 60_000)
    assert is_found(target)


def test_a_manifest_that_drops_or_moves_transactions_is_found() -> None:
    target = small_archive()
    path = manifest_path(1)
    data = json.loads(target.get(path, 1 << 20))
    first = json.loads(target.get(manifest_path(0), 1 << 20))["files"][0]["path"]
    changed: list[dict[str, Any]] = [
        {"files": [], "removed": {first: 1}},
        {"files": [dict(data["files"][0], first=7)]},
        {"full": True},
        {"number": 2},
    ]
    target.delete(HINT)  # its digest would tell all of these
    for change in changed:
        target.put(path, json.dumps(data | change).encode())
        assert is_found(target), change


def test_a_record_that_the_archiver_should_not_have_taken_is_found() -> None:
    """A forger of a record makes all digests fit."""
    target = memory_target()
    archive = add(target, {0: [(0, 4)]})
    writer = ObjectWriter(KEY, ZERO, TransactionId(4))
    good = batch(4, 3)
    wrong = bytearray(good.block)
    wrong[int(good.offsets[1]) + 40] ^= 1
    writer.add(replace_block(good, bytes(wrong)))
    made = writer.finish()
    from waltz.archive.commits import write_object

    file = write_object(target, made, "f" * 16)
    commit(target, archive.contents, Manifest(0, None, NOW, "w", files=(file,)))
    (finding,) = verify(target).findings
    assert (finding.partition, finding.transaction) == (0, 5)
    assert "checksum" in finding.text


def replace_block(good, block: bytes):  # type: ignore[no-untyped-def]
    from waltz.record import RecordBatch

    return RecordBatch(good.first_transaction_id, block, good.offsets)


def test_the_first_transaction_that_differs_from_the_log_is_named() -> None:
    target = small_archive()
    for place in range(9):
        log = ListedLog({0: 8, 1: 5}, size=4)
        log.differing = {"log": {place}}
        found = verify(target, log=log)
        assert found.verdict is False
        first = min(
            each.transaction
            for each in found.findings
            if each.partition == 0 and each.transaction is not None
        )
        assert first == place
        assert any("the log holds another record" in str(each) for each in found.findings)


def test_a_copy_that_differs_or_cannot_be_asked_is_told_apart() -> None:
    target = small_archive()
    log = ListedLog({0: 8, 1: 5}, size=4)
    log.differing = {"node-1:1": {7}}
    found = verify(target, log=log, replicas=True)
    assert [str(each).split(": ", 2)[0] for each in found.findings] == [
        "partition 0, transaction 7"
    ]
    log = ListedLog({0: 8, 1: 5}, size=4)
    log.silent = {"node-2:1"}
    found = verify(target, log=log, replicas=True)
    assert (found.verdict, found.findings) == (None, [])
    assert any("node-2:1" in each for each in found.unknown)
    log = ListedLog({0: 8, 1: 3}, size=4)
    found = verify(target, log=log)
    assert found.verdict is False
    assert "has less" in found.findings[0].text
    (finding,) = verify(target, log=ListedLog({0: 8}, key=OTHER_KEY)).findings
    assert str(OTHER_KEY) in finding.text


def test_a_sample_leaves_objects_out_and_says_so() -> None:
    target = small_archive()
    path = object_of(target, 0).path
    target.delete(path)
    found = verify(target, chosen=lambda each: each.path != path)
    assert (found.verdict, found.objects, found.objects_left_out) == (True, 2, 1)


def object_of(target: Target, place: int) -> NamedObject:
    return named_objects(target, Verification())[1][place]


def test_orphans_are_counted_and_are_no_fault() -> None:
    target = small_archive()
    target.put("log/0/left.wal", b"x")
    found = verify(target)
    assert (found.verdict, found.orphans) == (True, 1)


def test_records_are_taken_in_pieces_of_any_size() -> None:
    block = batch(3, 9).block
    for size in (1, 7, 40, 1000):
        records = Records(3)
        for start in range(0, len(block), size):
            records.take(block[start : start + size])
        records.finish()
        assert (records.position, records.byte_count) == (12, len(block))
    records = Records(3)
    records.take(block[:-1])
    with pytest.raises(ValueError, match="cut short"):
        records.finish()


def test_an_object_that_unpacks_to_more_than_it_should_is_not_unpacked() -> None:
    import zstandard

    target = small_archive()
    named = object_of(target, 0)
    data = target.get(named.path, 1 << 20)
    bomb = zstandard.ZstdCompressor().compress(b"\0" * 500_000_000)
    body = data[:64] + bomb + data[named.footer_at :]
    target.put(named.path, body)
    fitting = replace(
        named,
        byte_count=len(body),
        footer_at=64 + len(bomb),
        digest=sha256(body).hexdigest(),
    )
    assert list(judged_object(target, str(KEY), fitting))


def test_reading_stops_at_damage_after_what_is_sound() -> None:
    target = small_archive()
    named = object_of(target, 1)
    data = bytearray(target.get(named.path, 1 << 20))
    data[70] ^= 1
    target.put(named.path, bytes(data))
    archive = read_archive(target)
    found: list[bytes] = []
    with pytest.raises(CorruptionError, match="waltz archive repair"):
        found += archive.blocks(0, 2, 9)
    assert b"".join(found) == batch(2, 4, size=4).block
