"""A client's partition, stepped by hand on a clock of its own: what its tests share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from waltz.client.appends.submission import Submission
from waltz.client.partitions.client_partition import ClientPartition
from waltz.client.partitions.client_partition_events import (
    ApplyTransactions,
    Effect,
    Event,
    GenerationRaised,
    HighWaterMarkLoaded,
    Received,
    RetrySubmissions,
    SendMessages,
    StreamOpened,
)
from waltz.client.partitions.mounting import PartitionPhase
from waltz.client.transaction import PlainAppend
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.before_batches import apart, joined
from waltz.wire.client_protocol import FeedData, MountResponse, MountState
from waltz.wire.message import Message

ME = ClientId(7)
OTHER = ClientId(8)


def request(number: int, *, client_id: ClientId = ME, generation: int = 3) -> RequestId:
    return RequestId(client_id, Generation(generation), PartitionId(2), number)


def fed(transaction_id: int, number: int = 0, client_id: ClientId = OTHER) -> FeedData:
    return FeedData(request(number, client_id=client_id), TransactionId(transaction_id), 0)


def submission(number: int = 1, mark: int = -1) -> Submission:
    made = Submission(number, PlainAppend(2, b"hello", number), PartitionId(2))
    made.execute(TransactionId(mark))
    made.holds_room = True
    return made


def said_apart(effect: Effect) -> Effect:
    if not isinstance(effect, SendMessages):
        return effect
    messages = [*chain.from_iterable(map(apart, effect.messages))]
    return SendMessages(effect.connection_sequence, messages)


class World:
    """A partition and what it has done; every step is checked."""

    def __init__(self, *, with_data: bool = False, **settings: Any) -> None:
        self.machine = ClientPartition(ME, PartitionId(2), with_data=with_data, **settings)
        self.now = 100.0
        self.knows_batches = False
        self.step(GenerationRaised(Generation(3)))

    def step(self, *events: Event) -> Sequence[Effect]:
        """As the stream has it: a server that knows no batches says and hears single appends."""
        heard: list[Event] = []
        for event in events:
            if isinstance(event, StreamOpened):
                self.knows_batches = event.knows_batches
            if isinstance(event, Received):
                event = Received(event.connection_sequence, joined(event.messages))
            heard.append(event)
        effects = self.machine.step(heard, self.now)
        self.machine.check_invariants()
        return effects if self.knows_batches else [*map(said_apart, effects)]

    def hear(self, *messages: Message, stream: int = 0) -> Sequence[Effect]:
        return self.step(Received(stream, messages))

    def sleep(self, seconds: float) -> Sequence[Effect]:
        self.now += seconds
        return self.step()

    def mounted(self, mark: int = -1) -> World:
        self.step(StreamOpened(0))
        self.step(HighWaterMarkLoaded(TransactionId(mark)))
        self.hear(MountResponse(request(1), MountState.READY))
        assert self.machine.mounting.phase is PartitionPhase.MOUNTED
        return self


def sent(effects: Sequence[Effect]) -> list[Message]:
    return [
        message
        for effect in effects
        if isinstance(effect, SendMessages)
        for message in effect.messages
    ]


def only(effects: Sequence[Effect], kind: type[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def ids(effects: Sequence[Effect]) -> list[int]:
    return [
        data.transaction_id
        for effect in effects
        if isinstance(effect, ApplyTransactions)
        for data in effect.transactions
    ]


def retried(effects: Sequence[Effect]) -> list[int]:
    return [
        each.number
        for effect in effects
        if isinstance(effect, RetrySubmissions)
        for each in effect.submissions
    ]


def ahead(world: World) -> list[Effect]:
    """A server says so to every mount, for as long as it is asked again."""
    effects: list[Effect] = []
    while world.machine.deadline is not None:
        state = MountState.CLIENT_AHEAD
        effects += world.hear(MountResponse(request(world.machine.own.numbers.last), state))
        if world.machine.deadline is not None:
            effects += world.sleep(world.machine.deadline - world.now)
    return [each for each in effects if not isinstance(each, SendMessages)]
