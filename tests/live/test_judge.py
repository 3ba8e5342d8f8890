"""The judge finds each fault that is planted into the journals of a good run (DM-07)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from zlib import crc32

import pytest

from tests.live.journal import (
    Event,
    Step,
    encode_event,
    encode_fed,
    encode_request,
    event_path,
    fed_path,
    read_fed,
    verdict_number,
)
from tests.live.judge import (
    LOG,
    Account,
    Judgement,
    judge,
    judge_partition,
    judge_replica,
    judge_servers,
)
from waltz.sim.judges.history import ContextVerdict, FedRecord
from waltz.sim.judges.payload import EntryKind, Payload
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

CLIENTS = ("client-1", "client-2")
PARTITIONS = 2
TRANSACTIONS = 20
KEYS = 3

Change = Callable[[list[FedRecord]], list[FedRecord]]


def context_of(partition: int, index: int) -> int:
    return 1 + partition * TRANSACTIONS + index


def record(partition: int, index: int) -> FedRecord:
    """Transaction `index` of a log whose transactions count three keys up, in turns."""
    writer = index % len(CLIENTS)
    key = index % KEYS
    data = Payload(
        context_of(partition, index), 1, EntryKind.COUNT, index - 1, write_locks=(key,),
        entries=((key, index // KEYS + 1),),
    ).encode()  # fmt: skip
    request_id = RequestId(
        ClientId(writer + 1), Generation(0), PartitionId(partition), index // len(CLIENTS) + 1
    )
    return FedRecord(TransactionId(index), request_id, index, data)


def events(partition: int, client: int) -> list[Event]:
    found = []
    for index in range(client, TRANSACTIONS, len(CLIENTS)):
        context, moment = context_of(partition, index), 10 * index
        committed = verdict_number(ContextVerdict.COMMITTED)
        data = record(partition, index).data
        found += [
            Event(Step.SUBMITTED, context, moment),
            Event(Step.ATTEMPTED, context, moment + 1, index, data),
            Event(Step.PLACED, context, moment + 2, data=b"%d" % index),
            Event(Step.ENDED, context, moment + 2, committed),
        ]
    return found


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    """The journals of a run in which nothing went wrong."""
    for partition in range(PARTITIONS):
        log = encode_fed(record(partition, index) for index in range(TRANSACTIONS))
        for who in (LOG, *CLIENTS):
            fed_path(tmp_path, who, partition).write_bytes(log)
        for number, client in enumerate(CLIENTS):
            block = b"".join(map(encode_event, events(partition, number)))
            event_path(tmp_path, client, partition).write_bytes(block)
    return tmp_path


def checksums(journals: Path) -> dict[str, list[int]]:
    return {
        client: [crc32(fed_path(journals, client, each).read_bytes()) for each in range(PARTITIONS)]
        for client in CLIENTS
    }


def judged(journals: Path) -> Judgement:
    return judge_partition(journals, checksums(journals), (LOG,), 0)


def rewrite(journals: Path, change: Change, *who: str) -> None:
    for each in who:
        path = fed_path(journals, each, 0)
        path.write_bytes(encode_fed(change(list(read_fed(path)))))


def says(judgement: Judgement, text: str) -> bool:
    return any(violation.startswith(text) for violation in judgement.violations)


def test_a_good_run_is_found_good(journals: Path) -> None:
    """DM-05"""
    found = judge(journals, PARTITIONS, checksums(journals))
    assert found.violations == []
    assert found.transactions == found.attempts == PARTITIONS * TRANSACTIONS
    assert found.verdicts == {"COMMITTED": PARTITIONS * TRANSACTIONS}
    assert len(set(found.checksums.values())) == PARTITIONS


def test_a_transaction_that_all_have_lost_is_missed(journals: Path) -> None:
    """DM-07: everybody agrees, and only the one who was told that it is committed knows."""

    def lose(records: list[FedRecord]) -> list[FedRecord]:
        return records[:-1]

    rewrite(journals, lose, LOG, *CLIENTS)
    found = judged(journals)
    assert says(found, "I1 durability: context 20 of client-2 was reported committed")
    assert says(found, "lost write: no follower was fed context 20")


def test_a_transaction_that_is_there_twice_is_found(journals: Path) -> None:
    """DM-07"""

    def double(records: list[FedRecord]) -> list[FedRecord]:
        return [*records, records[3]._replace(transaction_id=TransactionId(len(records)))]

    rewrite(journals, double, LOG, *CLIENTS)
    found = judged(journals)
    assert says(found, "I5 verdict: context 4 of client-2 is in the log 2 times")
    assert says(found, "I6 at most once")


def test_a_gap_in_the_ids_is_found(journals: Path) -> None:
    def skip(records: list[FedRecord]) -> list[FedRecord]:
        return [*records[:-1], records[-1]._replace(transaction_id=TransactionId(TRANSACTIONS))]

    rewrite(journals, skip, LOG, *CLIENTS)
    assert says(judged(journals), "I4 density: partition 0 has IDs")


def test_a_client_that_was_handed_other_bytes_is_found(journals: Path) -> None:
    """DM-05: checksums equal."""

    def alter(records: list[FedRecord]) -> list[FedRecord]:
        changed = records[5]._replace(data=records[5].data + b"!")
        return [*records[:5], changed, *records[6:]]

    rewrite(journals, alter, "client-1")
    found = judged(journals)
    assert says(found, "checksum: client-1 has")
    assert not says(found, "checksum: client-2 has")
    assert says(found, "I4 feed: client-1 was fed transaction 5")


def test_a_client_that_was_not_handed_all_is_found(journals: Path) -> None:
    rewrite(journals, lambda records: records[:7], "client-2")
    assert says(judged(journals), "incomplete: client-2 was handed 7 of 20 transactions")


def test_a_client_that_sums_up_what_it_was_not_handed_is_found(journals: Path) -> None:
    summed = checksums(journals)
    summed["client-1"][0] ^= 1
    assert says(judge_partition(journals, summed, (), 0), "checksum: client-1 has")


@pytest.mark.parametrize(
    ("step", "verdict", "text"),
    [
        ("left out", ContextVerdict.COMMITTED, "I5 verdict: context 1 of client-1 ended 0 times"),
        ("doubled", ContextVerdict.COMMITTED, "I5 verdict: context 1 of client-1 ended 2 times"),
        ("kept", ContextVerdict.REFUSED, "I5 verdict: context 1 of client-1 was told"),
    ],
)
def test_a_context_that_does_not_end_once_and_rightly_is_found(
    journals: Path, step: str, verdict: ContextVerdict, text: str
) -> None:
    """DM-07"""
    kept = events(0, 0)
    ending = kept.pop(3)._replace(detail=verdict_number(verdict))
    kept += {"left out": [], "doubled": [ending, ending], "kept": [ending]}[step]
    event_path(journals, "client-1", 0).write_bytes(b"".join(map(encode_event, kept)))
    assert says(judged(journals), text)


def test_a_lost_update_is_found(journals: Path) -> None:
    """I7: two that count one key up from the same value were both let through."""
    stale = record(0, 9)
    payload = Payload.decode(stale.data)
    assert payload is not None
    data = Payload(
        payload.context, 1, EntryKind.COUNT, 4, write_locks=payload.write_locks, entries=((0, 3),)
    ).encode()

    def overlook(records: list[FedRecord]) -> list[FedRecord]:
        return [*records[:9], stale._replace(data=data), *records[10:]]

    rewrite(journals, overlook, LOG, *CLIENTS)
    found = judged(journals)
    assert says(found, "I7 lock safety")
    assert says(found, "I7 lost update")


def test_an_append_that_was_told_another_place_is_found(journals: Path) -> None:
    told = events(0, 0)
    told[2] = told[2]._replace(data=b"7")
    event_path(journals, "client-1", 0).write_bytes(b"".join(map(encode_event, told)))
    assert says(judged(journals), "place: context 1 of client-1 was told transaction 7; it is 0")


def test_what_no_client_has_written_is_found(journals: Path) -> None:
    def add(records: list[FedRecord]) -> list[FedRecord]:
        strange = records[-1]._replace(transaction_id=TransactionId(len(records)), data=b"strange")
        return [*records, strange]

    rewrite(journals, add, LOG, *CLIENTS)
    assert says(judged(journals), "stranger: no client has written transaction 20")


def test_a_transaction_that_is_in_another_partition_as_well_is_found(journals: Path) -> None:
    """Partitions are judged one at a time: there nobody has written it."""

    def add(records: list[FedRecord]) -> list[FedRecord]:
        return [*records, record(1, 0)._replace(transaction_id=TransactionId(len(records)))]

    rewrite(journals, add, LOG, *CLIENTS)
    assert says(judged(journals), "I1 durability: transaction 20")


def test_an_outcome_and_the_requests_of_a_context_are_read_back() -> None:
    request_id = record(0, 0).request_id
    account = Account()
    account.add(
        "client-1",
        PartitionId(0),
        [
            Event(Step.REQUESTED, 1, data=encode_request(request_id, 4)),
            Event(Step.ASKED, 1, data=encode_request(request_id, None)),
            Event(Step.ASKED, 1, data=encode_request(request_id, 5)),
        ],
    )
    assert account.requests == [("client-1", request_id, 4)]
    assert [told.transaction_id for told in account.history.outcomes] == [None, 5]


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held[:-1],
        lambda held: [],
        lambda held: [*held, held[0]],
        lambda held: [*held[:-1], held[-1]._replace(data=b"other")],
        lambda held: [*held[:-1], held[-1]._replace(header=-1)],
    ],
)
def test_a_replica_that_holds_anything_else_is_found(change: Change) -> None:
    records = [record(0, index) for index in range(TRANSACTIONS)]
    assert list(judge_replica("storage-1", records, records, PartitionId(0))) == []
    assert len(list(judge_replica("storage-1", change(records), records, PartitionId(0)))) == 1


@pytest.mark.parametrize(
    ("logs", "violation"),
    [
        (
            {
                "one": "partition_opened partition=0 generation=3",
                "two": "partition_opened partition=0 generation=3",
            },
            "generation 3 of partition 0",
        ),
        (
            {
                "one": "store_opened partition=0 session=4 mark=7",
                "two": "store_opened partition=0 session=4 mark=7",
            },
            "session 4 of partition 0 was opened 2 times",
        ),
        (
            {
                "one": "store_opened partition=0 session=4 mark=7",
                "two": "store_opened partition=0 session=5 mark=6",
            },
            "session 5 of 0 began at 6, behind 7",
        ),
    ],
)
def test_two_owners_at_a_time_are_found(logs: Mapping[str, str], violation: str) -> None:
    (found,) = judge_servers(logs)
    assert violation in found
