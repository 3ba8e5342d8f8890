"""A reader's view of trees: what is proven, and everything that is not is refused by name."""

from __future__ import annotations

from random import Random

import pytest

from tests.attest.test_attester import KEY, RECORDS, attester
from tests.attest.trees import CLUSTER, PARTITION, MemoryBlocks, MemoryFiles, block_of, known_key
from waltz.attest import attested_log
from waltz.attest.attested_log import AttestedLog
from waltz.attest.attester import Attester
from waltz.attest.notes import KeyKind, Note
from waltz.attest.tree_files import TreeFiles
from waltz.errors import AttestationError, ConfigurationError
from waltz.record import RecordBatch, batch_from_block
from waltz.types import TransactionId

WITNESS = known_key("witness.example/w", KeyKind.WITNESS)
OTHER = known_key("witness.example/other", KeyKind.WITNESS)


def attested(size: int, records: list[bytes] = RECORDS) -> MemoryFiles:
    memory = MemoryFiles()
    attester(memory).extend(MemoryBlocks(records), TransactionId(size))
    return memory


def log_of(memory: MemoryFiles, **options: object) -> AttestedLog:
    return AttestedLog(lambda _: TreeFiles(memory, PARTITION), KEY.public_key, **options)  # type: ignore[arg-type]


def batch(first: int, end: int, records: list[bytes] = RECORDS) -> RecordBatch:
    return batch_from_block(b"".join(records[first:end]), TransactionId(first))


def cosign(memory: MemoryFiles) -> None:
    files = TreeFiles(memory, PARTITION)
    note = files.checkpoint()
    assert note is not None
    files.publish(Note(note.text, (*note.signatures, WITNESS.sign(note.text, 17))))


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 300, 511, 512, 600])
def test_every_run_of_records_is_proven(size: int) -> None:
    log = log_of(attested(size))
    assert log.covered(CLUSTER, PARTITION).end == size
    random = Random(size)
    log.check(CLUSTER, PARTITION, batch(0, size))
    for _ in range(12):
        first, end = sorted(random.choices(range(size + 1), k=2))
        if first < end:
            log.check(CLUSTER, PARTITION, batch(first, end))


@pytest.mark.parametrize("changed", [0, 100, 255, 256, 511, 512, 599])
def test_the_first_changed_record_is_named(changed: int) -> None:
    records = [*RECORDS]
    for number in {changed, 599}:
        records[number] = block_of(number, 1, b"forged")
    log = log_of(attested(600))
    log.covered(CLUSTER, PARTITION)
    with pytest.raises(AttestationError, match=f"transaction {changed} is not proven"):
        log.check(CLUSTER, PARTITION, batch(0, 600, records))
    if changed:
        log.check(CLUSTER, PARTITION, batch(0, changed, records))


def test_records_and_tiles_that_were_changed_alike_are_not_proven() -> None:
    memory = attested(600)
    records = [*RECORDS[:300], block_of(300, 1, b"forged"), *RECORDS[301:]]
    forged = attested(600, records)
    for path in forged.content:
        if not path.endswith("checkpoint"):
            memory.content[path] = forged.content[path]
    log = log_of(memory)
    log.covered(CLUSTER, PARTITION)
    with pytest.raises(AttestationError, match="transaction"):
        log.check(CLUSTER, PARTITION, batch(290, 310, records))


def test_a_changed_tile_next_to_good_records_refuses_none_of_them() -> None:
    """Each is proven by itself then: what was changed is another leaf of their tile."""
    memory = attested(600)
    path = next(each for each in memory.content if each.endswith("tile/0/001"))
    changed = bytearray(memory.content[path])
    changed[50 * 32] ^= 1
    memory.content[path] = bytes(changed)
    log = log_of(memory)
    log.covered(CLUSTER, PARTITION)
    log.check(CLUSTER, PARTITION, batch(256, 512))  # all leaves are those of the records
    with pytest.raises(AttestationError, match="transaction 256 is not proven"):
        log.check(CLUSTER, PARTITION, batch(256, 300))  # a path leads over the changed leaf


def test_what_no_checkpoint_covers_is_not_proven() -> None:
    log = log_of(attested(300))
    with pytest.raises(AttestationError, match="not covered"):
        log.check(CLUSTER, PARTITION, batch(0, 1))
    found = log.covered(CLUSTER, PARTITION)
    assert found == (300, "the newest checkpoint has 300 transactions")
    with pytest.raises(AttestationError, match="transaction 300 is not covered"):
        log.check(CLUSTER, PARTITION, batch(290, 301))
    empty = log_of(MemoryFiles())
    assert empty.covered(CLUSTER, PARTITION) == (0, "nothing of it is attested yet")


def test_a_checkpoint_counts_once_enough_witnesses_have_cosigned() -> None:
    memory = attested(300)
    log = log_of(memory, witness_keys=[WITNESS.public_key, OTHER.public_key], witnesses_min=1)
    found = log.covered(CLUSTER, PARTITION)
    assert found.end == 0
    assert found.said.endswith("300 transactions and is cosigned by 0 witnesses; 1 are asked for")
    cosign(memory)
    assert log.covered(CLUSTER, PARTITION).end == 300
    attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(600))
    assert log.covered(CLUSTER, PARTITION).end == 300, "the older one stays in force"
    log.check(CLUSTER, PARTITION, batch(0, 300))
    cosign(memory)
    assert log.covered(CLUSTER, PARTITION).end == 600
    both = log_of(memory, witness_keys=[WITNESS.public_key, OTHER.public_key])
    assert both.covered(CLUSTER, PARTITION).end == 0
    with pytest.raises(ConfigurationError, match="witnesses_min is 2; expected 0 to the number"):
        log_of(memory, witness_keys=[WITNESS.public_key], witnesses_min=2)


def test_a_log_whose_history_was_changed_is_refused() -> None:
    memory = attested(300)
    log = log_of(memory)
    assert log.covered(CLUSTER, PARTITION).end == 300
    kept = log.checkpoint(CLUSTER, PARTITION)
    assert kept is not None
    attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(600))
    assert log.covered(CLUSTER, PARTITION).end == 600
    # The key's owner makes another log with the same key.
    fork = attested(600, [block_of(0, 1, b"other"), *RECORDS[1:]])
    memory.content = fork.content
    for refusing in (log, log_of(memory, seen=[kept])):
        with pytest.raises(AttestationError, match="its history was changed, or two histories"):
            refusing.covered(CLUSTER, PARTITION)
    assert log_of(memory).covered(CLUSTER, PARTITION).end == 600, "who has seen nothing believes it"


def test_an_older_checkpoint_of_the_same_log_takes_nothing_back() -> None:
    memory = attested(300)
    older = memory.content["attest/3/checkpoint"]
    attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(600))
    log = log_of(memory)
    assert log.covered(CLUSTER, PARTITION).end == 600
    memory.content["attest/3/checkpoint"] = older
    assert log.covered(CLUSTER, PARTITION).end == 600
    log.check(CLUSTER, PARTITION, batch(0, 600))


def test_a_checkpoint_that_another_key_has_signed_is_refused() -> None:
    memory = attested(300)
    other = known_key("another secret", KeyKind.LOG, name="waltz/test")
    files = TreeFiles(memory, PARTITION)
    memory.content.clear()
    Attester(files, CLUSTER, PARTITION, other).extend(MemoryBlocks(RECORDS), TransactionId(9))
    with pytest.raises(AttestationError, match="not signed by waltz/test"):
        log_of(memory).covered(CLUSTER, PARTITION)
    with pytest.raises(AttestationError, match="not signed by waltz/test"):
        log_of(memory, seen=[memory.content["attest/3/checkpoint"].decode()])


def test_planted_mistakes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile that is believed without its path; a checkpoint that need not extend the earlier."""
    with monkeypatch.context() as planted:
        planted.setattr(attested_log, "_is_tile_included", lambda *_: True)
        with pytest.raises(pytest.fail.Exception):
            test_the_first_changed_record_is_named(100)
    with monkeypatch.context() as planted:
        planted.setattr(attested_log, "is_consistent", lambda *_: True)
        with pytest.raises(pytest.fail.Exception):
            test_a_log_whose_history_was_changed_is_refused()
    with monkeypatch.context() as planted:
        planted.setattr(attested_log, "cosigners", lambda *_: (1, 1))
        with pytest.raises(AssertionError):
            test_a_checkpoint_counts_once_enough_witnesses_have_cosigned()
