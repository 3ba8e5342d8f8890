"""Trees by the words of RFC 6962, and files of a tree in memory that can die."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from waltz.attest.notes import KeyKind, SecretKey
from waltz.errors import NotFoundError
from waltz.record import NewRecord, pack_records
from waltz.types import PartitionId, TransactionId

CLUSTER = UUID("00112233-4455-6677-8899-aabbccddeeff")
PARTITION = PartitionId(3)


def known_key(secret: str, kind: KeyKind, *, name: str | None = None) -> SecretKey:
    """Return the same key in every process: what depends on it may be in the name of a test. The
    key is called `secret` unless it has another name."""
    private = Ed25519PrivateKey.from_private_bytes(sha256(secret.encode()).digest())
    return SecretKey(name or secret, kind, private)


def tree_hash(leaves: Sequence[bytes]) -> bytes:
    """Return MTH of leaf hashes, by its definition."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    left, right = tree_hash(leaves[:split]), tree_hash(leaves[split:])
    return sha256(b"\x01" + left + right).digest()


def some_leaves(count: int, salt: int = 0) -> list[bytes]:
    return [sha256(b"%d/%d" % (salt, number)).digest() for number in range(count)]


def block_of(first: int, count: int, data: bytes = b"") -> bytes:
    """Return records as on disk; the data of each is its ID and `data`."""
    from zlib import crc32

    new = []
    for number in range(first, first + count):
        content = b"%d:" % number + data
        new.append(NewRecord(number.to_bytes(16, "big"), number % 7, content, crc32(content)))
    return pack_records(TransactionId(first), new).block


class MemoryBlocks:
    """A partition's records in memory, as an archive gives them, in pieces of a few."""

    def __init__(self, blocks: Sequence[bytes]) -> None:
        self.records = list(blocks)

    def blocks(
        self, partition_id: PartitionId, first: TransactionId, end: TransactionId
    ) -> Iterator[bytes]:
        assert partition_id == PARTITION
        step = 7
        for start in range(first, end, step):
            yield b"".join(self.records[start : min(start + step, end)])


class KilledError(Exception):
    """The process was killed before a write."""


class MemoryFiles:
    """The files of a target; from `dies_at` writes on the process is dead."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.writes = 0
        self.dies_at: int | None = None

    def get(self, path: str, bytes_max: int) -> bytes:
        if path not in self.content:
            raise NotFoundError(path)
        return self.content[path]

    def put_all_if_absent(self, objects: Sequence[tuple[str, bytes]]) -> list[str]:
        found = []
        for path, data in objects:
            if path in self.content:
                found.append(path)
                continue
            self._write()
            self.content[path] = data
        return found

    def put(self, path: str, data: bytes) -> None:
        self._write()
        self.content[path] = data

    def _write(self) -> None:
        if self.writes == self.dies_at:
            raise KilledError
        self.writes += 1
