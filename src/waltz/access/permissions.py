"""The rights of one connection, by the policy in force.

Owns the decisions about one connection: each verb and partition is decided once, until there is
another policy. Headers are looked at in each append. Knows no connection; whether a denial has an
effect is its caller's business.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from waltz.access.message_verbs import NEEDED_VERB, partitions_asked
from waltz.access.policy import NumberRange, Policy, Verb, decide, headers_allowed
from waltz.arrays import np
from waltz.types import PartitionId
from waltz.wire.batch_protocol import AppendBatch
from waltz.wire.client_protocol import AppendRequest
from waltz.wire.message import Message

if TYPE_CHECKING:
    from numpy.typing import NDArray

RULINGS_MAX: Final = 1_000
"""Decisions that are kept for one connection, which may ask for any number of partitions; all are
made anew when there are more."""


class Denial(NamedTuple):
    """A request that the policy does not allow; `message` None: it is a mount, or the connection,
    that was allowed before. `is_repeated`: the connection was denied the same verb at the same
    partition before, by the same policy."""

    verb: Verb
    partition_id: PartitionId | None
    reason: str
    is_repeated: bool
    message: Message | None


class _Ruling:
    """The decision about a verb and a partition."""

    __slots__ = ("firsts", "is_told", "lasts", "reason")

    def __init__(self, reason: str | None, allowed: Sequence[NumberRange] | None = None) -> None:
        """`reason` None: it is allowed, with headers of these ranges, which ascend; None: with all
        headers."""
        self.reason = reason
        self.firsts = None if allowed is None else [each.first for each in allowed]
        self.lasts = [each.last for each in allowed or ()]
        self.is_told = False

    def first_denied(self, headers: Sequence[int] | NDArray[np.int32]) -> int | None:
        """Return the first header that is not allowed; None: there is none."""
        firsts = self.firsts
        if firsts is None:
            return None
        if not firsts:
            return int(headers[0])
        if len(headers) == 1:
            lowest = highest = headers[0]
        else:
            lowest, highest = int(np.minimum.reduce(headers)), int(np.maximum.reduce(headers))
        place = bisect_right(firsts, lowest) - 1
        if place >= 0 and highest <= self.lasts[place]:
            return None  # as nearly always
        places = np.searchsorted(np.array(firsts, np.int64), headers, side="right") - 1
        is_denied = (places < 0) | (np.asarray(headers) > np.array(self.lasts, np.int64)[places])
        return int(headers[int(is_denied.argmax())]) if is_denied.any() else None


class Permissions:
    """See the module."""

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self._policy: Policy | None = None
        """By which the rulings were made."""
        self._rulings: dict[tuple[Verb, PartitionId | None], _Ruling] = {}

    def denials(self, policy: Policy, messages: Iterable[Message]) -> Iterator[Denial]:
        """Yield what the policy does not allow of `messages`, in order, at most one denial per
        message and partition.

        Answers, and what belongs to the connection itself, need no verb.
        """
        for message in messages:
            verb = NEEDED_VERB.get(type(message))
            if verb is None:
                continue
            for partition_id in partitions_asked(message) or (None,):
                denial = self._denial(policy, message, verb, partition_id, _headers(message))
                if denial is not None:
                    yield denial

    def lost(self, policy: Policy, mounted: Iterable[PartitionId]) -> Iterator[Denial]:
        """Yield what a connection that has mounted these partitions may do no longer: to be
        connected first, then each mount."""
        standing = [(Verb.CONNECT, None), *((Verb.READ, each) for each in mounted)]
        for verb, partition_id in standing:
            denial = self._denial(policy, None, verb, partition_id, None)
            if denial is not None:
                yield denial

    def _denial(
        self,
        policy: Policy,
        message: Message | None,
        verb: Verb,
        partition_id: PartitionId | None,
        headers: Sequence[int] | NDArray[np.int32] | None,
    ) -> Denial | None:
        ruling = self._ruling(policy, verb, partition_id)
        reason = ruling.reason
        if reason is None and headers is not None:
            header = ruling.first_denied(headers)
            if header is not None:
                reason = decide(policy, self.principal, verb, partition_id, header).reason
        if reason is None:
            return None
        is_repeated, ruling.is_told = ruling.is_told, True
        return Denial(verb, partition_id, reason, is_repeated, message)

    def _ruling(self, policy: Policy, verb: Verb, partition_id: PartitionId | None) -> _Ruling:
        if policy is not self._policy:
            self._policy = policy
            self._rulings.clear()
        key = (verb, partition_id)
        if key not in self._rulings:
            if len(self._rulings) >= RULINGS_MAX:
                self._rulings.clear()
            self._rulings[key] = self._decided(policy, verb, partition_id)
        return self._rulings[key]

    def _decided(self, policy: Policy, verb: Verb, partition_id: PartitionId | None) -> _Ruling:
        decision = decide(policy, self.principal, verb, partition_id)
        if not decision.is_allowed:
            return _Ruling(decision.reason)
        allowed = (
            headers_allowed(policy, self.principal, partition_id) if verb is Verb.APPEND else None
        )
        return _Ruling(None, allowed)


def _headers(message: Message) -> Sequence[int] | NDArray[np.int32] | None:
    if isinstance(message, AppendBatch):
        return message.appends.headers
    return (message.header,) if isinstance(message, AppendRequest) else None
