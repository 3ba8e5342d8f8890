from __future__ import annotations

from zlib import crc32

from tests.server.builders import PARTITION, batch, data_request, mark_request, request_id, tid
from waltz.limits import WRITE_BUFFER_BYTES_HIGH
from waltz.server.feeding.backlog import Backlog
from waltz.server.feeding.feed_cache import FeedCache
from waltz.server.feeding.fetches import Fetches, FetchRecords
from waltz.server.feeding.outbox import Outbox, Send
from waltz.server.feeding.transaction_data import DataRequests
from waltz.wire.client_protocol import TransactionDataResponse


class Bench:
    def __init__(self) -> None:
        self.cache = FeedCache()
        self.fetches = Fetches(PARTITION, self.cache)
        self.backlog = Backlog()
        self.requests = DataRequests(PARTITION, self.cache, self.fetches, self.backlog)
        self.outbox = Outbox()
        self.blocked: set[int] = set()

    def serve(self, mark: int = 99) -> list[Send]:
        self.requests.serve(tid(mark), self.blocked, self.outbox, 0.0)
        return self.outbox.take()


def answer(number: int, data: bytes) -> TransactionDataResponse:
    return TransactionDataResponse(request_id(), tid(number), data, crc32(data), None)


def test_cached_transaction_is_answered_with_its_checksum() -> None:
    """SV-06, CS-17."""
    bench = Bench()
    bench.cache.add(PARTITION, batch(0, 3))
    bench.requests.ask(1, data_request(2))
    assert bench.serve() == [Send(1, (answer(2, b"00000002"),))]
    assert bench.fetches.take_started() == []


def test_what_the_cache_has_is_at_hand_and_nothing_else() -> None:
    bench = Bench()
    bench.cache.add(PARTITION, batch(0, 3))
    requests = bench.requests
    found = requests.answers_at_hand([data_request(2), data_request(0)], tid(2))
    assert found == [answer(2, b"00000002"), answer(0, b"00000000")]
    for other in (data_request(-1), data_request(3), mark_request()):
        assert requests.answers_at_hand([data_request(2), other], tid(5)) == ()
    assert requests.answers_at_hand([data_request(2)], tid(1)) == (), "not committed"
    assert bench.fetches.take_started() == []


def test_more_than_a_step_hands_over_is_not_at_hand() -> None:
    bench = Bench()
    bench.cache.add(PARTITION, batch(0, 2, WRITE_BUFFER_BYTES_HIGH))
    asked = [data_request(0), data_request(1)]
    assert len(bench.requests.answers_at_hand(asked[:1], tid(1))) == 1
    assert bench.requests.answers_at_hand(asked, tid(1)) == ()


def test_missing_transaction_is_a_failure_and_not_a_read() -> None:
    bench = Bench()
    for number in (-1, 100):
        bench.requests.ask(1, data_request(number))
        ((_, (response,)),) = [(s.connection_id, s.parts) for s in bench.serve()]
        assert isinstance(response, TransactionDataResponse)
        assert response.data is None
        assert response.error == f"not found: partition=3 transactionId={number}"
    assert bench.fetches.take_started() == []


def test_hundred_requests_for_an_old_record_are_one_read() -> None:
    """SV-22."""
    bench = Bench()
    for connection in range(100):
        bench.requests.ask(connection, data_request(50))
    assert bench.serve() == []
    assert bench.fetches.take_started() == [FetchRecords(tid(50), 50)]
    bench.fetches.end(tid(50))
    bench.cache.add(PARTITION, batch(50, 50))
    bench.requests.wake_fetching()
    assert bench.serve() == [Send(n, (answer(50, b"00000050"),)) for n in range(100)]


def test_failed_read_is_answered_and_then_forgotten() -> None:
    """H1."""
    bench = Bench()
    bench.requests.ask(1, data_request(50))
    bench.serve()
    bench.requests.fail(bench.fetches.end(tid(50)), "no luck", bench.outbox, with_data=True)
    assert bench.outbox.take() == [
        Send(1, (TransactionDataResponse(request_id(), tid(50), None, 0, "no luck"),))
    ]
    bench.cache.add(PARTITION, batch(50, 1))
    bench.requests.ask(1, data_request(50))
    assert bench.serve() == [Send(1, (answer(50, b"00000050"),))]


def test_failed_read_fails_nobody_else() -> None:
    bench = Bench()
    bench.requests.ask(1, data_request(50))
    bench.serve()
    bench.requests.fail(range(60, 70), "no luck", bench.outbox, with_data=True)
    assert bench.outbox.take() == []
    assert len(bench.requests) == 1


def test_full_connection_gets_nothing_until_it_has_room() -> None:
    bench = Bench()
    bench.cache.add(PARTITION, batch(0, 3))
    bench.blocked.add(1)
    bench.requests.ask(1, data_request(0))
    bench.requests.ask(2, data_request(0))
    assert bench.serve() == [Send(2, (answer(0, b"00000000"),))]
    bench.blocked.remove(1)
    assert bench.serve() == []
    bench.requests.resume(1)
    assert bench.requests.ready
    assert bench.serve() == [Send(1, (answer(0, b"00000000"),))]


def test_step_hands_over_a_bounded_number_of_bytes_per_connection() -> None:
    bench = Bench()
    bench.cache.add(PARTITION, batch(0, 3, size=WRITE_BUFFER_BYTES_HIGH - 1))
    for number in (0, 1, 2):
        bench.requests.ask(1, data_request(number))
    assert [len(send.parts) for send in bench.serve()] == [2]
    assert bench.requests.ready
    assert [len(send.parts) for send in bench.serve()] == [1]


def test_lost_connection_takes_its_requests_along() -> None:
    bench = Bench()
    bench.cache.add(PARTITION, batch(0, 1))
    bench.requests.ask(1, data_request(0))
    bench.requests.ask(1, data_request(50))
    bench.requests.ask(2, data_request(50))
    bench.requests.remove(1)
    assert len(bench.requests) == 1
    assert bench.serve() == []


def test_partition_that_leaves_answers_everyone() -> None:
    bench = Bench()
    bench.blocked.add(3)
    bench.requests.ask(1, data_request(50))
    bench.requests.ask(3, data_request(50))
    bench.serve()
    bench.requests.ask(2, data_request(50))
    bench.requests.fail_all("gone", bench.outbox)
    assert sorted(send.connection_id for send in bench.outbox.take()) == [1, 2, 3]
    assert len(bench.requests) == 0
