"""What the storage tests share: batches, a simulated directory, an independent reader."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from uuid import UUID
from zlib import crc32

from tests.storage.independent_reader import read_independently as read_independently
from waltz.host import Disk
from waltz.record import NewRecord, RecordBatch, pack_records
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.directory.control_file import ControlFile, open_control_file
from waltz.storage.drain import Drain
from waltz.storage.log.segment import SegmentHome
from waltz.storage.partition_replica import StoragePartition
from waltz.types import PartitionId, SessionId, TransactionId
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    FailureResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    SetLowWaterMarkRequest,
    StorageMessage,
    SuccessResponse,
)

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")
OTHER_KEY = UUID("ffeeddcc-bbaa-9988-7766-554433221100")
GOLDEN = Path(__file__).parent.parent / "golden"
GOLDEN_KEY = UUID("c9e0789e-63ae-41d1-8b53-48ffb21cd9b4")
DIRECTORY = "/storage"
DIRECTORY_ID = UUID("d1d1d1d1-0000-4000-8000-000000000001")
ZERO = PartitionId(0)
SESSION = SessionId(0)


def t(number: int) -> TransactionId:
    return TransactionId(number)


def record_data(number: int) -> bytes:
    return b"data of %d " % number + bytes([number % 256]) * (number * 7 % 60)


def batch(first: int, count: int, *, size: int | None = None, partition: int = 0) -> RecordBatch:
    """Records whose data tells their ID, `size` bytes each if given."""
    records = []
    for number in range(first, first + count):
        data = record_data(number) if size is None else record_data(number).ljust(size)[:size]
        records.append(
            NewRecord(struct.pack(">iiii", 1, 2, partition, number), number, data, crc32(data))
        )
    return pack_records(t(first), records)


def fresh_disk() -> SimulatedDisk:
    return SimulatedDisk([DIRECTORY])


def open_control(
    disk: Disk,
    *,
    directory: str = DIRECTORY,
    key: UUID = KEY,
    partition_count: int = 2,
    assigned: Sequence[int] = (0,),
    directory_id: UUID = DIRECTORY_ID,
) -> ControlFile:
    return open_control_file(
        disk,
        directory,
        cluster_key=key,
        partition_count=partition_count,
        assigned=[PartitionId(number) for number in assigned],
        directory_id=directory_id,
        wall_milliseconds=1_700_000_000_000,
    )


def make_partition(
    disk: Disk,
    control_file: ControlFile,
    *,
    directory: str = DIRECTORY,
    number: int = 0,
    key: UUID = KEY,
    threshold: int = 1_000_000_000,
    wall_milliseconds: Callable[[], int] = lambda: 1_700_000_000_001,
) -> StoragePartition:
    """A partition of the node, not opened."""
    return StoragePartition(
        disk,
        directory,
        control_file,
        PartitionId(number),
        cluster_key=key,
        segment_bytes_threshold=threshold,
        wall_milliseconds=wall_milliseconds,
    )


def open_partition(disk: Disk, *, threshold: int = 1_000_000_000) -> StoragePartition:
    """Partition 0, assigned, in session 0, which has had an answer already unless it is damaged."""
    control_file = open_control(disk)
    partition = make_partition(disk, control_file, threshold=threshold)
    partition.open()
    if partition.damage is None:
        control_file.promises(ZERO).raise_fence(SESSION)
    return partition


def home(disk: Disk, *, key: UUID = KEY, number: int = 0) -> SegmentHome:
    return SegmentHome(disk, f"{DIRECTORY}/{number}", key, PartitionId(number))


def append(first: int, count: int, *, size: int | None = None) -> AppendRecordsRequest:
    return AppendRecordsRequest(SESSION, first, ZERO, batch(first, count, size=size), False)


def ask(partition: StoragePartition, request: StorageMessage) -> StorageMessage:
    """Process one request alone."""
    partition.announce(request.session_id)
    (answer,) = Drain(partition, [request]).run()
    assert (answer.session_id, answer.sequence_number, answer.partition_id) == (
        request.session_id,
        request.sequence_number,
        request.partition_id,
    )
    return answer


def succeed(partition: StoragePartition, request: StorageMessage) -> None:
    answer = ask(partition, request)
    assert isinstance(answer, SuccessResponse), answer


def refusal(partition: StoragePartition, request: StorageMessage) -> str:
    answer = ask(partition, request)
    assert isinstance(answer, FailureResponse), answer
    return answer.message


def start_session(partition: StoragePartition, session: int, mark: int) -> None:
    succeed(partition, SetLowWaterMarkRequest(SessionId(session), 1, ZERO, t(mark), offline=False))


def last_id(partition: StoragePartition, session: int = 0) -> int:
    answer = ask(partition, MaxTransactionIdRequest(SessionId(session), 1, ZERO, offline=False))
    assert isinstance(answer, MaxTransactionIdResponse), answer
    return answer.transaction_id


def read_all(partition: StoragePartition) -> list[bytes]:
    """The data of all records, which must have the IDs from 0 on."""
    found: list[bytes] = []
    while True:
        records = partition.log.records.read(t(len(found)), count_max=1000, bytes_max=1_000_000)
        if not len(records):
            return found
        assert records.first_transaction_id == len(found)
        found += [record.data for record in records.records()]


def golden_disk(name: str) -> SimulatedDisk:
    """A simulated disk that holds the golden directory `name`, durably."""
    source = GOLDEN / name
    directories = [path for path in sorted(source.rglob("*")) if path.is_dir()]
    disk = SimulatedDisk(
        [DIRECTORY, *(f"{DIRECTORY}/{path.relative_to(source)}" for path in directories)]
    )
    for path in sorted(source.rglob("*")):
        if path.is_file():
            file = disk.open(f"{DIRECTORY}/{path.relative_to(source)}", create=True)
            file.write_at(0, path.read_bytes())
            file.sync()
            file.close()
    for directory in (
        DIRECTORY,
        *(f"{DIRECTORY}/{path.relative_to(source)}" for path in directories),
    ):
        disk.sync_directory(directory)
    return disk


def random(seed: object) -> Random:
    return Random(str(seed))
