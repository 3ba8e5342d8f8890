"""What is fuzzed: each target takes any bytes, and raises nothing but the errors it names.

Each returns whether it has taken the input, so that it shows if all are refused at the door. Where
a second opinion is cheap, the result is compared with it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final
from uuid import UUID
from zlib import crc32

from tests.fuzz import inputs
from tests.storage.corruption import is_flawless
from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    NotFoundError,
    RemoteProtocolError,
    StorageError,
    UnavailableError,
)
from waltz.limits import DATA_BYTES_MAX
from waltz.record import batch_from_block, scan_records
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.directory.control_file import open_control_file
from waltz.storage.directory.node_file import decode_node_file
from waltz.storage.inspection.survey import InspectionTarget as Path
from waltz.storage.inspection.verification import Options, verify
from waltz.storage.log.damage import decode_damage
from waltz.storage.log.segment import SegmentHome
from waltz.storage.log.segment_recovery import Trust
from waltz.storage.log.segments import SegmentChain
from waltz.types import PartitionId, TransactionId
from waltz.wire.admin_protocol import ADMIN_CODEC
from waltz.wire.handshake import Link
from waltz.wire.message import Codec
from waltz.wire.storage_protocol import STORAGE_CODEC

KEY: Final = UUID(bytes=inputs.KEY)
ROOT: Final = "/storage"
STEM: Final = f"{ROOT}/0/{0:019d}"
FAULT: Final = "a fault"
MARKS: Final = (-1, 0, 3, 9, 1_000)


@dataclass(frozen=True)
class Target:
    """`share` is how many of a thousand inputs it gets. `bytes_per_byte` bounds what it may
    allocate at a time, together with a constant."""

    name: str
    share: int
    make: Callable[[Random], bytes]
    run: Callable[[bytes], bool]
    bytes_per_byte: int = 64


def run_scan(data: bytes) -> bool:
    """Against the plainest reader that there is."""
    found = scan_records(data, TransactionId(0)).tolist()
    expected, position = [0], 0
    while len(data) - position >= 40:
        number, _, _, length, _ = struct.unpack_from(">q16siiI", data, position)
        end = position + 36 + length
        if number != len(expected) - 1 or not 0 <= length <= DATA_BYTES_MAX or end + 4 > len(data):
            break
        if crc32(data[position:end]).to_bytes(4, "big") != data[end : end + 4]:
            break
        position = end + 4
        expected.append(position)
    assert found == expected
    try:
        batch = batch_from_block(data, TransactionId(0))
    except CorruptionError:
        assert found[-1] != len(data)
        return False
    assert batch.block == data
    assert len(list(batch.records())) == len(batch)
    return True


def segment_disk(data: bytes, index: bytes) -> SimulatedDisk:
    disk = SimulatedDisk([ROOT, f"{ROOT}/0"])
    put(disk, f"{STEM}.seg", data)
    put(disk, f"{STEM}.idx", index)
    return disk


def put(disk: SimulatedDisk, path: str, content: bytes) -> None:
    file = disk.open(path, create=True)
    file.write_at(0, content)
    file.sync()


def make_segment(draw: Random) -> bytes:
    data, index = inputs.segment(draw)
    match draw.randrange(5):
        case 0:
            data = inputs.mutated(draw, data, [index])
        case 1:
            index = inputs.mutated(draw, index, [data])
        case 2:
            data = inputs.random_bytes(draw)
        case 3:
            index = inputs.random_bytes(draw)
    return bytes([draw.randrange(256)]) + inputs.joined([data, index])


def run_segment(data: bytes) -> bool:
    """Open a partition on it as a node does, read and scrub all, and open it again: what is served
    checks out by its own checksum, and is the same whenever it is served."""
    choice, (seg, idx) = data[0], inputs.parted(data[1:], 2)
    disk = segment_disk(seg, idx)
    trust = Trust(
        local_low_water_mark=TransactionId(MARKS[choice % len(MARKS)]),
        index_is_proof=bool(choice & 64),
    )
    served: list[bytes | None] = []
    for _ in range(2):
        chain = SegmentChain(
            SegmentHome(disk, f"{ROOT}/0", KEY, PartitionId(0)),
            segment_bytes_threshold=10_000,
            wall_milliseconds=lambda: 1,
        )
        try:
            chain.open(trust)
        except (StorageError, UnavailableError):
            return False
        again = read_chain(chain)
        for before, now in zip(served, again, strict=False):
            assert before is None or now is None or before == now
        with suppress(StorageError, UnavailableError):
            scrub_chain(chain)
        served = read_chain(chain)
        with suppress(StorageError, UnavailableError):
            chain.close()
    return True


def read_chain(chain: SegmentChain) -> list[bytes | None]:
    """Each record as its bytes, None for one that is refused; at most some."""
    found: list[bytes | None] = []
    while len(found) < min(40, chain.next_transaction_id):
        try:
            batch = chain.records.read(TransactionId(len(found)), count_max=1, bytes_max=1)
        except (StorageError, NotFoundError):
            found.append(None)
            continue
        assert len(batch) == 1
        assert scan_records(batch.block, TransactionId(len(found))).tolist() == [
            0,
            len(batch.block),
        ]
        found.append(batch.block)
    return found


def scrub_chain(chain: SegmentChain) -> None:
    position = TransactionId(0)
    while position < chain.next_transaction_id:
        step = chain.records.scrub(position, 4096)
        assert step.next_transaction_id > position
        position = step.next_transaction_id


def make_control_file(draw: Random) -> bytes:
    control = inputs.one_of(draw, inputs.control_file)
    node = inputs.one_of(draw, inputs.node_file) if draw.random() < 0.5 else b""
    return inputs.joined([control, node])


def control_disk(data: bytes) -> SimulatedDisk:
    control, node = inputs.parted(data, 2)
    disk = SimulatedDisk([ROOT, f"{ROOT}/0"])
    put(disk, f"{ROOT}/waltz-storage.ctl", control)
    if node:
        put(disk, f"{ROOT}/waltz-storage.node", node)
    return disk


def run_control_file(data: bytes) -> bool:
    """Open it twice: what holds after the first opening holds after the second."""
    disk = control_disk(data)
    before: list[object] = []
    for _ in range(2):
        try:
            control = open_control_file(
                disk,
                ROOT,
                cluster_key=KEY,
                partition_count=2,
                assigned=(),
                directory_id=KEY,
                wall_milliseconds=1,
            )
        except ConfigurationError:
            assert not before
            return False
        found: list[object] = []
        for partition_id in (PartitionId(0), PartitionId(1)):
            try:
                found.append(
                    (control.promises(partition_id).info, control.promises(partition_id).fence)
                )
            except CorruptionError:
                found.append(None)
        control.close()
        assert all(old in (None, new) for old, new in zip(before, found, strict=False))
        before = found
    return True


def run_node_file(data: bytes) -> bool:
    try:
        decode_node_file(data, cluster_key=KEY, partition_count=2, place="node")
    except ConfigurationError:
        return False
    return True


def run_damage_file(data: bytes) -> bool:
    found = decode_damage(data)
    if found is None:
        return False
    assert all(isinstance(number, int) for pair in found.damage for number in pair)
    return True


def make_directory(draw: Random) -> bytes:
    control = inputs.one_of(draw, inputs.control_file)
    node = inputs.one_of(draw, inputs.node_file) if draw.random() < 0.5 else b""
    data, index = inputs.segment(draw)
    if draw.random() < 0.5:
        data = inputs.one_of(draw, lambda draw: data)
    if draw.random() < 0.5:
        index = inputs.one_of(draw, lambda draw: index)
    return inputs.joined([control, node, data, index, inputs.damage_file(draw)])


def run_verify(data: bytes) -> bool:
    """The look at the files never raises, and says what is wrong with them unless an independent
    reader finds nothing either."""
    control, node, seg, idx, damage = inputs.parted(data, 5)
    disk = control_disk(inputs.joined([control, node]))
    put(disk, f"{STEM}.seg", seg)
    put(disk, f"{STEM}.idx", idx)
    put(disk, f"{ROOT}/0/damaged.json", damage)
    report = verify(disk, Path(ROOT), Options(data_checksums=True))
    if not report.findings:
        contents = disk.contents()
        assert is_flawless(
            {
                path.removeprefix(f"{ROOT}/"): content
                for path, content in contents.items()
                if content is not None
            }
        )
    return report.records > report.records_failed


def run_message(codec: Codec) -> Callable[[bytes], bool]:
    def run(data: bytes) -> bool:
        """What is decoded is encoded again to the same bytes, but for what reads leniently."""
        version, payload = data[0], data[1:]
        try:
            message = codec.decode(payload, version)
        except RemoteProtocolError:
            return False
        assert codec.decode(codec.encode(message, version)[7:], version) == message
        return True

    return run


def run_stream(codec: Codec) -> Callable[[bytes], bool]:
    def run(data: bytes) -> bool:
        """However it is cut into reads, the same messages come out, or the same fault."""
        outcomes = []
        for size in (len(data) or 1, 7):
            link = Link(codec, "a test")
            found: list[object] = []
            try:
                for start in range(0, len(data), size):
                    found += link.receive(data[start : start + size])
            except RemoteProtocolError:
                found = [FAULT]
            outcomes.append(found)
        assert outcomes[0] == outcomes[1]
        return outcomes[0] not in ([], [FAULT])

    return run


TARGETS: Final = (
    Target("records", 250, lambda draw: inputs.one_of(draw, inputs.records), run_scan),
    Target("segment", 60, make_segment, run_segment, bytes_per_byte=2_000),
    Target("control file", 40, make_control_file, run_control_file),
    Target("node file", 80, lambda draw: inputs.one_of(draw, inputs.node_file), run_node_file),
    Target(
        "damage file", 60, lambda draw: inputs.one_of(draw, inputs.damage_file), run_damage_file
    ),
    Target("verify", 40, make_directory, run_verify, bytes_per_byte=2_000),
    Target(
        "storage message",
        200,
        lambda draw: inputs.message(draw, STORAGE_CODEC),
        run_message(STORAGE_CODEC),
    ),
    Target(
        "admin message",
        120,
        lambda draw: inputs.message(draw, ADMIN_CODEC),
        run_message(ADMIN_CODEC),
    ),
    Target(
        "storage stream",
        90,
        lambda draw: inputs.one_of(draw, lambda draw: inputs.stream(draw, STORAGE_CODEC)),
        run_stream(STORAGE_CODEC),
    ),
    Target(
        "admin stream",
        60,
        lambda draw: inputs.one_of(draw, lambda draw: inputs.stream(draw, ADMIN_CODEC)),
        run_stream(ADMIN_CODEC),
    ),
)
assert sum(target.share for target in TARGETS) == 1_000
