"""A server's partition with its store and its clients, stepped by hand: what its tests share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.server.builders import (
    PARTITION,
    VERSION,
    decoded,
    feed_request,
    mount,
    peer,
    received,
    request_id,
    tid,
)
from waltz.record import NewRecord, pack_records, request_id_from
from waltz.server.clients.client_connection import MessagesReceived
from waltz.server.feeding.backlog import WorkedOff
from waltz.server.feeding.feed_cache import FeedCache
from waltz.server.feeding.fetches import FetchRecords
from waltz.server.feeding.outbox import Send
from waltz.server.held_partition import HeldPartition
from waltz.server.server_partition_events import (
    AppendToStore,
    ClientMounted,
    HoldEvent,
    PartitionEvent,
)
from waltz.store.events import AppendsFailed, Committed, StoreOpened
from waltz.types import Generation, SessionId
from waltz.wire.client_protocol import ClientMessage, FeedData, MountResponse, MountState

READY = MountResponse(request_id(), MountState.READY)
NOT_READY = MountResponse(request_id(), MountState.NOT_READY)
CLIENT_AHEAD = MountResponse(request_id(), MountState.CLIENT_AHEAD)


def opened(mark: int, session: int = 0) -> StoreOpened:
    return StoreOpened(SessionId(session), tid(mark))


class Bench:
    """A partition and its store, which holds appends until the test decides them."""

    def __init__(self, mark: int | None = -1, generation: int = 1) -> None:
        self.cache = FeedCache()
        self.full: set[int] = set()
        self.machine = HeldPartition(PARTITION, Generation(generation), self.cache, self.full)
        self.worked_off: Counter[int] = Counter()
        self.store: list[NewRecord] = []
        self.mark = -1 if mark is None else mark
        self.now = 0.0
        self.heard: dict[int, list[object]] = {}
        self.versions: dict[int, int] = {}
        self.reads: list[FetchRecords] = []
        self.mounted: list[ClientMounted] = []
        self.others: list[object] = []
        if mark is not None:
            self.step(opened(mark))

    def step(self, *events: PartitionEvent | HoldEvent) -> dict[int, list[object]]:
        """Return what each connection hears in this step."""
        heard: dict[int, list[object]] = {}
        at_hand: dict[int, Sequence[object]] = {}
        for event in events:
            if isinstance(event, MessagesReceived):
                sender = event.peer
                if len(events) == 1:
                    at_hand[sender.connection_id] = self.machine.answers_at_hand(event)
                self.versions[sender.connection_id] = 5 if sender.has_lasting_sequence else VERSION
        for effect in self.machine.step(events, self.now):
            match effect:
                case ClientMounted():
                    self.mounted.append(effect)
                case Send(connection_id, parts):
                    assert connection_id not in heard, "one write per connection and step"
                    version = self.versions[connection_id]
                    told = [message for part in parts for message in decoded(part, version)]
                    if told:
                        heard[connection_id] = told
                case AppendToStore(records):
                    self.store += records
                case FetchRecords():
                    self.reads.append(effect)
                case WorkedOff(connection_id, byte_count):
                    self.worked_off[connection_id] += byte_count
                case _:
                    self.others.append(effect)
        for connection_id, answers in at_hand.items():
            assert [each for each in heard.get(connection_id, []) if each in answers] == [*answers]
        self.machine.check_invariants()
        self.cache.check_invariants()
        return heard

    def say(self, *messages: ClientMessage, connection: int = 1, client: int = 7,
            sequence: int = 0, version: int = VERSION) -> list[object]:  # fmt: skip
        """What the connection hears at once."""
        sender = peer(connection, client, sequence, version)
        return self.step(received(sender, *messages)).get(connection, [])

    def commit(self, count: int | None = None) -> dict[int, list[object]]:
        count = len(self.store) if count is None else count
        done, self.store = self.store[:count], self.store[count:]
        committed = pack_records(tid(self.mark + 1), done)
        self.mark += count
        return self.step(Committed(committed))

    def fail(self, count: int) -> dict[int, list[object]]:
        del self.store[:count]
        return self.step(AppendsFailed(count))

    def stored(self) -> list[int]:
        return [request_id_from(record.request_id).sequence_number for record in self.store]


def mounted(mark: int = -1) -> Bench:
    """A partition on which connection 1 of client 7 is mounted and fed."""
    bench = Bench(mark)
    assert bench.say(mount(mark)) == [READY]
    bench.say(feed_request(mark))
    return bench


def mount_ready(client: int) -> MountResponse:
    return MountResponse(request_id(client), MountState.READY)


def feed_of(sequences: Iterable[int], first: int, client: int = 7) -> list[FeedData]:
    return [
        FeedData(request_id(client, sequence), tid(first + n), 0)
        for n, sequence in enumerate(sequences)
    ]
