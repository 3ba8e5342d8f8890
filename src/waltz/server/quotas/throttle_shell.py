"""Lets connections wait for the buckets of their principals.

A connection that waits is not read, or is sent nothing more; nobody is told an error. While it is
not read its heartbeats are not answered, so it is sent some at least every `HELD_UP_SECONDS_MAX`.
Decides nothing: `Allowances` do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from waltz.access.policy import Policy
from waltz.host import Clock, Connection
from waltz.limits import TIMER_SECONDS_MIN
from waltz.server.quotas.allowances import Allowance, Allowances, append_cost
from waltz.server.quotas.token_bucket import TokenBucket
from waltz.wire.lifecycle_protocol import Feature
from waltz.wire.logical_link import LogicalLink
from waltz.wire.message import Message

HELD_UP_SECONDS_MAX: Final = 1.0
"""Seconds that a connection is held up before another look at its quota, and a heartbeat."""


class Throttled(Protocol):
    """A connection as a quota sees it."""

    principal: str
    link: LogicalLink
    connection: Connection | None

    def write(self, data: bytes) -> None: ...


C = TypeVar("C", bound=Throttled)


class Throttle(Generic[C]):
    """See the module."""

    def __init__(self, clock: Clock, policy: Callable[[], Policy | None]) -> None:
        """`policy` returns the one in force."""
        self._clock = clock
        self._policy = policy
        self._allowances = Allowances()
        self._sent: WeakKeyDictionary[C, tuple[TokenBucket, int]] = WeakKeyDictionary()
        """The position of the last bytes sent to each connection, and its bucket."""
        self._beaten_at: WeakKeyDictionary[C, float] = WeakKeyDictionary()
        """The time of the last heartbeat to each connection that was held up."""

    @property
    def has_quotas(self) -> bool:
        """Whether anybody may have to wait."""
        return self._allowances.holds(self._policy(), self._clock.now)

    def refusal(self, client: C, clients: Iterable[C]) -> str | None:
        """Return why `client`, who is one of `clients`, may not stay; None: it may."""
        allowance = self._allowance(client)
        limit = None if allowance is None else allowance.quota.connections
        if limit is None:
            return None
        own = sum(each.principal == client.principal and _is_there(each) for each in clients)
        return f"quota: {limit} connections of {client.principal}" if own > limit else None

    def throttled(self) -> tuple[tuple[tuple[str], float], ...]:
        """Return the seconds waited, by principal."""
        return self._allowances.throttled()

    def portions(self, client: C, messages: Sequence[Message]) -> Sequence[Sequence[Message]]:
        """Return the messages in portions: `lets` is asked for each, one after the other."""
        if not messages or not self.has_quotas or (allowance := self._allowance(client)) is None:
            return (messages,)
        return allowance.portions(messages, self._clock.now())

    async def lets(self, client: C, messages: Iterable[Message]) -> bool:
        """Return once the quota allows the appends among `messages`; False: the connection was
        given up meanwhile."""
        if not self.has_quotas or (allowance := self._allowance(client)) is None:
            return True
        now = self._clock.now()
        costs = [append_cost(message) for message in messages]
        count, byte_count = (sum(each) for each in zip(*costs, strict=True))
        positions = [
            (name, bucket, bucket.take(amount, now))
            for name, amount in (("appends", count), ("append_bytes", byte_count))
            if amount and (bucket := getattr(allowance, name)) is not None
        ]
        for name, bucket, position in positions:
            await self._wait(client, name, bucket, position)
        return not _is_given_up(client)

    def is_over(self, client: C, byte_count: int) -> bool:
        """Note bytes that were sent to the connection; return whether it is to be sent nothing more
        until `wait_to_send` returns."""
        if not self.has_quotas:
            return False
        allowance = self._allowance(client)
        if allowance is None or (bucket := allowance.read_bytes) is None:
            return False
        now = self._clock.now()
        position = bucket.take(byte_count, now)
        self._sent[client] = (bucket, position)
        return bucket.wait_seconds(position, now) > 0

    async def wait_to_send(self, client: C) -> None:
        """Return once the quota allows what was sent to the connection."""
        while (sent := self._sent.pop(client, None)) is not None:
            await self._wait(client, "read_bytes", *sent)

    def _allowance(self, client: C) -> Allowance | None:
        return self._allowances.find(self._policy(), client.principal, self._clock.now())

    async def _wait(self, client: C, name: str, bucket: TokenBucket, position: int) -> None:
        """Return once `bucket` admits the position, or the quota holds no more."""
        since = self._clock.now()
        while getattr(self._allowance(client), name, None) is bucket and not _is_given_up(client):
            if not (seconds := bucket.wait_seconds(position, since)):
                return
            self._beat(client)
            await asyncio.sleep(min(max(seconds, TIMER_SECONDS_MIN), HELD_UP_SECONDS_MAX))
            now = self._clock.now()
            self._allowances.note_throttled(client.principal, now - since)
            since = now

    def _beat(self, client: C) -> None:
        """Send a heartbeat, unless the last one was sent just now."""
        now = self._clock.now()
        if now - self._beaten_at.get(client, -HELD_UP_SECONDS_MAX) >= HELD_UP_SECONDS_MAX:
            self._beaten_at[client] = now
            if Feature.HEARTBEAT in client.link.features:
                client.write(client.link.heartbeat(wants_answer=False))


def _is_there(client: Throttled) -> bool:
    return client.connection is not None and not _is_given_up(client)


def _is_given_up(client: Throttled) -> bool:
    """Whether its connection is at its end, and nobody can restore it."""
    return client.link.retained.is_broken and client.link.retained.has_overflowed
