"""The records of a Kafka transaction, by value."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from tests.bridge.test_webhook_choice import columns
from waltz.bridge.kafka_record import RECORD_BYTES, RecordKey, Run, RunChoice
from waltz.envelope import enclosed

HISTORY = UUID(int=7)
LOG = columns([b"a", b"b", b"c", b"d", b"e"], [1, 2, 1, 2, 3])
ALL = RunChoice(10, 1_000_000, None, RecordKey.NONE)


def ids(run: Run) -> list[int]:
    return [each.transaction_id for each in run.records]


def test_a_record_has_the_data_and_says_which_transaction_it_is() -> None:
    run = ALL.run(3, LOG, 101, 1, HISTORY, 10_000)
    (record,) = run.records
    assert (record.key, record.value, run.last) == (None, b"b", 101)
    assert dict(record.headers) == {
        "waltz-partition": b"3",
        "waltz-transaction": b"101",
        "waltz-header": b"2",
        "waltz-history": str(HISTORY).encode(),
        "waltz-request": b"1:2:3:1",
    }
    keyed = replace(ALL, key=RecordKey.TRANSACTION).run(3, LOG, 104, 9, HISTORY, 10_000)
    assert [each.key for each in keyed.records] == [b"3:104"]


def test_an_envelope_is_taken_off() -> None:
    log = columns([enclosed({"traceparent": "00-1"}, b"inside")], [1])
    assert ALL.run(0, log, 100, 9, HISTORY, 10_000).records[0].value == b"inside"


def test_a_run_ends_at_its_bounds_and_passes_over_what_is_left_out() -> None:
    assert ids(ALL.run(3, LOG, 100, 2, HISTORY, 10_000)) == [100, 101]
    two = replace(ALL, bytes_max=2 * (RECORD_BYTES + 1))
    assert ids(two.run(3, LOG, 102, 9, HISTORY, 10_000)) == [102, 103]
    assert ids(replace(ALL, bytes_max=1).run(3, LOG, 102, 9, HISTORY, 10_000)) == [102]
    only = replace(ALL, only=frozenset({2}))
    run = only.run(3, LOG, 100, 9, HISTORY, 10_000)
    assert (ids(run), run.last) == ([101, 103], 104)
    run = only.run(3, LOG, 100, 1, HISTORY, 10_000)
    assert (ids(run), run.last) == ([101], 102), "all after it up to the next wanted one, too"
    run = replace(ALL, only=frozenset({9})).run(3, LOG, 100, 9, HISTORY, 10_000)
    assert (run.records, run.last) == ((), 104)


def test_a_record_that_the_topic_does_not_take_is_alone() -> None:
    log = columns([b"a", b"b" * 5_000, b"c"], [1, 1, 1])
    for first, wanted in ((100, [100]), (101, [101]), (102, [102])):
        assert ids(ALL.run(3, log, first, 9, HISTORY, 4_000)) == wanted
    assert ids(ALL.run(3, log, 100, 9, HISTORY, 9_000)) == [100, 101, 102]
