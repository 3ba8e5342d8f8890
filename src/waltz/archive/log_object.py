"""The object of the archive that holds records: header, compressed frames, footer.

Owns the bytes. Knows neither where objects are kept nor what names them.

    header    64 bytes
    frames    zstandard, back to back; each holds whole records exactly as they are on disk
    footer    a copy of the header, the table of frames, digests of blocks, a trailer

A frame holds at most `FRAME_BYTES_MAX` bytes of records, or one larger record. The footer has a
SHA-256 for each frame, so its own digest covers every byte of the object. Every number read from an
object is checked before anything is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple
from uuid import UUID
from zlib import crc32

from waltz.arrays import np
from waltz.errors import CorruptionError
from waltz.limits import DATA_BYTES_MAX
from waltz.record import RECORD_HEADER_BYTES, RECORD_OVERHEAD_BYTES, RecordBatch
from waltz.types import PartitionId, TransactionId

MAGIC: Final = b"WALTZARC"
END_MAGIC: Final = b"CRAZTLAW"
FORMAT: Final = 1

FRAME_BYTES_MAX: Final = 1024 * 1024
"""Bytes of records in one frame, unless a single record is larger."""

OBJECT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of records in one object."""

BLOCK_TRANSACTIONS: Final = 10_000
"""Records digested together: the digests of an object begin anew at each multiple of this ID."""

FOOTER_BYTES_MAX: Final = 256 * 1024
"""Bytes of a footer; one of an object of `OBJECT_BYTES_MAX` has a tenth of that."""

FULL_FRAME_BYTES_MIN: Final = FRAME_BYTES_MAX // 2
"""Bytes of records from which a frame goes into a larger object as it is kept. So a larger object
has at most twice as many frames as full ones would be."""

COMPRESSION_LEVEL: Final = 1
"""The level of zstandard. Records have request IDs and checksums that no level makes shorter; level
3 takes up to twice as long and makes frames that are no smaller (decisions, 0042)."""

HEADER: Final = struct.Struct(">8si16siqq12x")
FRAME: Final = struct.Struct(">qiii32s")
BLOCK: Final = struct.Struct(">q32s")
TRAILER: Final = struct.Struct(">ii32s")
CHECKSUM: Final = struct.Struct(">I")
ID_AND_LENGTH: Final = struct.Struct(">q20xi")
"""Transaction ID and data length at the beginning of a record."""

HEADER_BYTES: Final = HEADER.size + CHECKSUM.size
TRAILER_BYTES: Final = TRAILER.size + CHECKSUM.size + len(END_MAGIC)

assert HEADER_BYTES == 64

_RECORD_BYTES_MAX: Final = DATA_BYTES_MAX + RECORD_OVERHEAD_BYTES


class ObjectHead(NamedTuple):
    """The log that an object has records of, and which: `first` to `end` - 1 of a partition."""

    cluster_key: UUID
    partition_id: PartitionId
    first: TransactionId
    end: TransactionId


class Frame(NamedTuple):
    """A compressed run of whole records.

    offset       its first byte in the object.
    byte_count   bytes as they are kept.
    raw_count    bytes of its records.
    first, end   the transaction IDs of its records: `first` to `end` - 1.
    digest       SHA-256 of the bytes as they are kept.
    """

    offset: int
    byte_count: int
    raw_count: int
    first: TransactionId
    end: TransactionId
    digest: bytes


class BlockDigest(NamedTuple):
    """The SHA-256 of the records before `end`, from the end of the block before."""

    end: TransactionId
    digest: bytes


@dataclass(frozen=True, slots=True)
class Footer:
    """The table of an object.

    raw_digest  SHA-256 of all its records, back to back.
    """

    head: ObjectHead
    frames: tuple[Frame, ...]
    blocks: tuple[BlockDigest, ...]
    raw_digest: bytes


@dataclass(frozen=True, slots=True)
class LogObject:
    """An object as it is to be kept: `data`, and where its footer begins."""

    head: ObjectHead
    data: bytes
    footer_offset: int
    raw_count: int
    raw_digest: bytes

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the whole object."""
        return sha256(self.data).digest()

    @property
    def footer_digest(self) -> bytes:
        return sha256(memoryview(self.data)[self.footer_offset :]).digest()


class ObjectWriter:
    """Takes records of one partition in order and makes an object of them."""

    def __init__(self, cluster_key: UUID, partition_id: PartitionId, first: TransactionId) -> None:
        import zstandard

        self.first = first
        self.next = first
        self.raw_count = 0
        self._cluster_key = cluster_key
        self._partition_id = partition_id
        self._compress = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=False)
        self._stored: list[bytes] = []
        self._stored_count = HEADER_BYTES
        self._frames: list[Frame] = []
        self._pending: list[memoryview] = []
        self._pending_bytes = 0
        self._pending_first = first
        self._blocks: list[BlockDigest] = []
        self._block = sha256()
        self._whole = sha256()

    def add(self, batch: RecordBatch) -> None:
        """Take the next records. They must begin where the last ones have ended."""
        assert batch.first_transaction_id == self.next, "records are added in order"
        view = memoryview(batch.block)
        self._digest(batch, view)
        start = 0
        while start < batch.count:
            begin = int(batch.offsets[start])
            room = FRAME_BYTES_MAX - self._pending_bytes
            fits = int(np.searchsorted(batch.offsets[start + 1 :], begin + room, side="right"))
            if not fits and self._pending:
                self._end_frame()
                continue
            taken = max(1, fits)
            end = int(batch.offsets[start + taken])
            self._pending.append(view[begin:end])
            self._pending_bytes += end - begin
            self.next = TransactionId(self.next + taken)
            start += taken
        self.raw_count += len(batch.block)

    def add_frame(self, frame: Frame, stored: bytes, batch: RecordBatch) -> None:
        """Take the next records as another object has them: `stored` is the frame of `batch`, which
        the caller has unpacked and checked. It is not compressed again if it is full enough."""
        if frame.raw_count < FULL_FRAME_BYTES_MIN:
            self.add(batch)
            return
        assert batch.first_transaction_id == self.next, "records are added in order"
        if self._pending:
            self._end_frame()
        self._digest(batch, memoryview(batch.block))
        self.next = batch.next_transaction_id
        self.raw_count += len(batch.block)
        self._keep(stored, len(batch.block), frame.digest)

    def _digest(self, batch: RecordBatch, view: memoryview) -> None:
        self._whole.update(view)
        start = 0
        while start < batch.count:
            position = batch.first_transaction_id + start
            count = min(BLOCK_TRANSACTIONS - position % BLOCK_TRANSACTIONS, batch.count - start)
            self._block.update(view[int(batch.offsets[start]) : int(batch.offsets[start + count])])
            start += count
            if (position + count) % BLOCK_TRANSACTIONS == 0:
                self._end_block(position + count)

    def _end_block(self, end: int) -> None:
        self._blocks.append(BlockDigest(TransactionId(end), self._block.digest()))
        self._block = sha256()

    def _end_frame(self) -> None:
        stored = self._compress.compress(b"".join(self._pending))
        self._keep(stored, self._pending_bytes, sha256(stored).digest())

    def _keep(self, stored: bytes, raw_count: int, digest: bytes) -> None:
        """Append a frame of the records taken since the frame before it."""
        self._frames.append(
            Frame(
                self._stored_count, len(stored), raw_count, self._pending_first, self.next, digest
            )
        )
        self._stored.append(stored)
        self._stored_count += len(stored)
        self._pending, self._pending_bytes, self._pending_first = [], 0, self.next

    def finish(self) -> LogObject:
        """Return the object of all records taken, at least one."""
        assert self.next > self.first, "an object holds a record"
        if self._pending:
            self._end_frame()
        if self.next % BLOCK_TRANSACTIONS:
            self._end_block(self.next)
        head = ObjectHead(self._cluster_key, self._partition_id, self.first, self.next)
        raw_digest = self._whole.digest()
        footer = encode_footer(Footer(head, tuple(self._frames), tuple(self._blocks), raw_digest))
        data = b"".join([encode_head(head), *self._stored, footer])
        return LogObject(head, data, self._stored_count, self.raw_count, raw_digest)


def encode_head(head: ObjectHead) -> bytes:
    """Return the first bytes of an object."""
    start = HEADER.pack(
        MAGIC,
        FORMAT,
        head.cluster_key.bytes,
        head.partition_id,
        head.first,
        head.end - head.first,
    )
    return start + CHECKSUM.pack(crc32(start))


def decode_head(data: bytes) -> ObjectHead:
    """Return the head in the first bytes of an object. Raises CorruptionError."""
    if len(data) < HEADER_BYTES:
        raise CorruptionError(f"a header of {len(data)} bytes; expected {HEADER_BYTES}")
    magic, version, key, partition_id, first, count = HEADER.unpack_from(data)
    (checksum,) = CHECKSUM.unpack_from(data, HEADER.size)
    if magic != MAGIC:
        raise CorruptionError(f"the object begins with {magic!r}; expected {MAGIC!r}")
    if checksum != crc32(data[: HEADER.size]):
        raise CorruptionError("the checksum of the header is wrong")
    if version != FORMAT:
        raise CorruptionError(f"an object of format {version}; this release reads {FORMAT}")
    if data[:HEADER_BYTES] != encode_head(
        head := ObjectHead(
            UUID(bytes=key),
            PartitionId(partition_id),
            TransactionId(first),
            TransactionId(first + count),
        )
    ):
        raise CorruptionError("reserved bytes of the header are not zero")
    if partition_id < 0 or first < 0 or count < 1 or first > 2**63 - 1 - count:
        raise CorruptionError(f"{count} records from {first} on of partition {partition_id}")
    return head


def encode_footer(footer: Footer) -> bytes:
    """Return the last bytes of an object."""
    parts = [encode_head(footer.head)]
    parts += (
        FRAME.pack(each.offset, each.byte_count, each.raw_count, each.end - each.first, each.digest)
        for each in footer.frames
    )
    parts += (BLOCK.pack(each.end, each.digest) for each in footer.blocks)
    parts.append(TRAILER.pack(len(footer.frames), len(footer.blocks), footer.raw_digest))
    start = b"".join(parts)
    return start + CHECKSUM.pack(crc32(start)) + END_MAGIC


def footer_bytes(trailer: bytes) -> int:
    """Return the length of the footer that ends with the last `TRAILER_BYTES` of an object.

    Raises CorruptionError: these bytes are no trailer.
    """
    if len(trailer) != TRAILER_BYTES or trailer[-len(END_MAGIC) :] != END_MAGIC:
        raise CorruptionError(f"the object does not end with {END_MAGIC!r}")
    frames, blocks, _ = TRAILER.unpack_from(trailer)
    length: int = HEADER_BYTES + frames * FRAME.size + blocks * BLOCK.size + TRAILER_BYTES
    if frames < 1 or blocks < 1 or length > FOOTER_BYTES_MAX:
        raise CorruptionError(f"a footer of {frames} frames and {blocks} blocks")
    return length


def decode_footer(data: bytes) -> Footer:
    """Return the table in the last bytes of an object. Raises CorruptionError."""
    if footer_bytes(data[-TRAILER_BYTES:]) != len(data):
        raise CorruptionError(f"a footer of {len(data)} bytes does not have the length it says")
    (checksum,) = CHECKSUM.unpack_from(data, len(data) - len(END_MAGIC) - CHECKSUM.size)
    if checksum != crc32(data[: -len(END_MAGIC) - CHECKSUM.size]):
        raise CorruptionError("the checksum of the footer is wrong")
    head = decode_head(data[:HEADER_BYTES])
    frame_count, block_count, raw_digest = TRAILER.unpack_from(data, len(data) - TRAILER_BYTES)
    blocks_at = HEADER_BYTES + frame_count * FRAME.size
    return Footer(
        head,
        _frames(head, data[HEADER_BYTES:blocks_at]),
        _blocks(head, data[blocks_at : blocks_at + block_count * BLOCK.size]),
        raw_digest,
    )


def _frames(head: ObjectHead, table: bytes) -> tuple[Frame, ...]:
    found = []
    position, offset = int(head.first), HEADER_BYTES
    for told, byte_count, raw_count, count, digest in FRAME.iter_unpack(table):
        if told != offset or byte_count < 1 or count < 1 or position + count > head.end:
            raise CorruptionError(f"the frame at {told} does not follow the one before it")
        bytes_max = _RECORD_BYTES_MAX if count == 1 else FRAME_BYTES_MAX
        if not count * RECORD_OVERHEAD_BYTES <= raw_count <= bytes_max:
            raise CorruptionError(f"{count} records in a frame of {raw_count} bytes")
        if byte_count > stored_bytes_max(raw_count):
            raise CorruptionError(f"{raw_count} bytes compressed to {byte_count}")
        end = TransactionId(position + count)
        found.append(Frame(offset, byte_count, raw_count, TransactionId(position), end, digest))
        position, offset = end, offset + byte_count
    if position != head.end:
        raise CorruptionError(f"the frames end before {position}; the object before {head.end}")
    return tuple(found)


def stored_bytes_max(raw_count: int) -> int:
    """Return the most bytes that zstandard may make of that many, by its documented bound."""
    return raw_count + (raw_count >> 8) + 128


def _blocks(head: ObjectHead, table: bytes) -> tuple[BlockDigest, ...]:
    found = [BlockDigest(TransactionId(end), digest) for end, digest in BLOCK.iter_unpack(table)]
    if [each.end for each in found] != block_ends(head.first, head.end):
        raise CorruptionError("the blocks are not those of the object's records")
    return tuple(found)


def block_ends(first: int, end: int) -> list[TransactionId]:
    """Return where the blocks of a run end: at multiples of `BLOCK_TRANSACTIONS`, and at its end.

    Returns at most one more end than a footer has room for.
    """
    following = first - first % BLOCK_TRANSACTIONS + BLOCK_TRANSACTIONS
    most = following + BLOCK_TRANSACTIONS * (FOOTER_BYTES_MAX // BLOCK.size)
    ends = list(range(following, min(end, most), BLOCK_TRANSACTIONS))
    return [TransactionId(each) for each in [*ends, end]]


def unpacked(frame: Frame, stored: bytes) -> bytes:
    """Return the records of a frame. Raises CorruptionError: the bytes are not those it names."""
    import zstandard

    if len(stored) != frame.byte_count or sha256(stored).digest() != frame.digest:
        raise CorruptionError(f"the digest of the frame at byte {frame.offset} is wrong")
    try:
        # Checked first: the library allocates what the frame says.
        if zstandard.frame_content_size(stored) != frame.raw_count:
            raise CorruptionError(f"the frame at byte {frame.offset} holds another length")
        raw = zstandard.ZstdDecompressor().decompress(
            stored, max_output_size=frame.raw_count, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise CorruptionError(f"the frame at byte {frame.offset}: {error}") from None
    if len(raw) != frame.raw_count:
        raise CorruptionError(f"the frame at byte {frame.offset} holds {len(raw)} bytes")
    return raw


def cut(frame: Frame, raw: bytes, first: int, end: int) -> bytes:
    """Return the records `first` to `end` - 1 of a frame, which holds some of them.

    Raises CorruptionError: these are not records with the IDs of the frame.
    """
    begin, stop = max(first, frame.first), min(end, frame.end)
    if (begin, stop) == (frame.first, frame.end):
        return raw
    places = record_offsets(raw, frame.first, stop - frame.first)
    return raw[places[begin - frame.first] : places[stop - frame.first]]


def record_offsets(raw: bytes, first: int, count: int | None = None) -> Sequence[int]:
    """Return where the first `count` records begin, and where the last of them ends; all if `count`
    is None.

    Raises CorruptionError: there are not that many records with dense IDs from `first` on, or bytes
    after them that are no record.
    """
    places = [0]
    place, size, transaction_id = 0, len(raw), first
    unpack = ID_AND_LENGTH.unpack_from
    while place < size if count is None else transaction_id < first + count:
        if size - place < RECORD_OVERHEAD_BYTES:
            raise CorruptionError(f"record {transaction_id} is cut short")
        found_id, length = unpack(raw, place)
        place += RECORD_HEADER_BYTES + length + CHECKSUM.size
        if found_id != transaction_id or not 0 <= length <= DATA_BYTES_MAX or place > size:
            raise CorruptionError(f"record {transaction_id} is not where it should be")
        places.append(place)
        transaction_id += 1
    return places
