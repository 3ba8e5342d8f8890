"""Conclusions from the answers of servers, storage nodes and journals, by value."""

from __future__ import annotations

from zlib import crc32

from waltz.errors import UnavailableError
from waltz.operators.client_questions_shell import ClientMount, MountedClient, ServerClients
from waltz.operators.explanation_shell import (
    Copy,
    CopyRead,
    CopyStanding,
    author_of,
    judged,
    majority_record,
)
from waltz.record import Record
from waltz.types import (
    Address,
    ClientId,
    Generation,
    PartitionId,
    ReplicaId,
    RequestId,
    TransactionId,
)
from waltz.wire.journal_entries import ClientNoted

P0, P1 = PartitionId(0), PartitionId(1)
S1, S2, S3 = (ReplicaId(f"s{number}:1") for number in (1, 2, 3))
SERVER, OTHER = Address("v1", 1), Address("v2", 1)


def record(data: bytes) -> Record:
    request_id = RequestId(ClientId(7), Generation(1), P0, 11)
    return Record(TransactionId(5), request_id, 0, data, crc32(data))


def client(client_id: int, *partitions: PartitionId, name: str | None = "orders") -> MountedClient:
    mounts = tuple(ClientMount(each, None, None, None, None, None, False) for each in partitions)
    return MountedClient(
        1, ClientId(client_id), name, "orders-7", "app.py", "0.1.0", False, "CN=orders",
        "h:9", 5, True, True, 1.0, 0.1, mounts, 0,
    )  # fmt: skip


def clients(*found: MountedClient) -> ServerClients:
    return ServerClients(0.0, {P0: Generation(1)}, {}, found, {}, True)


NOTED = ClientNoted(ClientId(7), 1_700_000_000_000, "orders", "CN=orders", "h:8", "app.py 0.1.0")


def test_copies_are_compared_with_the_record() -> None:
    reads = [
        CopyRead(S1, record(b"a")),
        CopyRead(S2, record(b"b")),
        CopyRead(S3, None, CopyStanding.MISSING, "its log ends before"),
    ]
    assert judged(reads, record(b"a")) == (
        Copy(S1, CopyStanding.SAME, ""),
        Copy(S2, CopyStanding.DIFFERENT, "it is another record than the others have"),
        Copy(S3, CopyStanding.MISSING, "its log ends before"),
    )


def test_without_a_record_no_copy_is_called_good() -> None:
    (only,) = judged([CopyRead(S1, record(b"a"))], None)
    assert only.standing is CopyStanding.UNKNOWN


def test_a_record_is_that_of_a_majority_or_of_nobody() -> None:
    a, b = CopyRead(S1, record(b"a")), CopyRead(S2, record(b"b"))
    absent = CopyRead(S3, None, CopyStanding.UNKNOWN, "silent")
    assert majority_record([a, b, CopyRead(S3, record(b"b"))]) == record(b"b")
    assert majority_record([a, b, absent]) is None
    assert majority_record([absent, absent, a]) is None
    assert majority_record([]) is None


def test_the_author_is_the_client_that_has_the_partition_mounted() -> None:
    answers = {SERVER: clients(client(7, P1), client(8, P0), client(7, P0))}
    found = author_of(ClientId(7), P0, answers, None)
    assert found is not None
    assert (found.name, found.instance, found.principal) == ("orders", "orders-7", "CN=orders")
    assert found.source == "server v1:1 has it mounted now"


def test_the_author_is_taken_from_a_journal_if_no_server_has_the_client() -> None:
    answers: dict[Address, ServerClients | UnavailableError] = {
        SERVER: clients(client(7, P1)),
        OTHER: UnavailableError("silent"),
    }
    found = author_of(ClientId(7), P0, answers, NOTED)
    assert found is not None
    assert (found.address, found.source) == ("h:8", "a journal has it")
    assert author_of(ClientId(7), P0, answers, None) is None
