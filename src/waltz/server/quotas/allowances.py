"""The buckets and counts of each principal at one server, by the policy in force.

Owns who shares which bucket, for how long a bucket is kept, and the time that was waited. All
connections of a principal share its buckets; `anonymous` is one principal. Knows no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from waltz.access.policy import Mode, Policy, quota_of
from waltz.access.quota import Quota
from waltz.arrays import np
from waltz.server.quotas.token_bucket import TokenBucket
from waltz.wire.batch_protocol import AppendBatch
from waltz.wire.columns import AppendColumns
from waltz.wire.message import Message

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRINCIPALS_MAX: Final = 10_000
"""Principals whose allowances are kept. When there are more, those go that nobody waits for; if all
are used, the oldest half goes, and is given a burst again."""

THROTTLED_PRINCIPALS_MAX: Final = 100
"""Principals for which the time that was waited is counted by itself; all others are one."""

OTHER_PRINCIPALS: Final = "others"
"""The name of all others; no principal has it."""

LOCK_HASH_BYTES: Final = 4
"""Bytes of a lock in an append."""

PORTION_SECONDS: Final = 0.02
"""A principal over its quota is admitted what the quota gives in this time, and one append more, at
a time: others' appends wait for one such portion."""

PORTION_MIN: Final = (32, 32 * 1024)
"""Appends and bytes that a portion has at least, and one append more: below that a portion costs
others what a single append does, so that smaller ones would be met more often for nothing."""


class Allowance:
    """The buckets of one principal; None: no limit."""

    def __init__(self, quota: Quota, now: float) -> None:
        self.quota = quota
        self.append_bytes = _bucket(None, quota.append_bytes, now)
        self.appends = _bucket(None, quota.appends, now)
        self.read_bytes = _bucket(None, quota.read_bytes, now)

    def change(self, quota: Quota, now: float) -> None:
        """Let another quota hold from now on."""
        self.quota = quota
        self.append_bytes = _bucket(self.append_bytes, quota.append_bytes, now)
        self.appends = _bucket(self.appends, quota.appends, now)
        self.read_bytes = _bucket(self.read_bytes, quota.read_bytes, now)

    def portions(self, messages: Sequence[Message], now: float) -> list[list[Message]]:
        """Return the messages, their appends in portions that are to be admitted one by one; there
        is one portion if the buckets have enough for all."""
        limits = [
            (kind, bucket)
            for kind, bucket in enumerate((self.appends, self.append_bytes))
            if bucket is not None
        ]
        if not limits:
            return [[*messages]]
        totals = [sum(each) for each in zip(*map(append_cost, messages), strict=True)]
        if all(bucket.has(totals[kind], now) for kind, bucket in limits):
            return [[*messages]]
        portions: list[list[Message]] = [[]]
        steps = np.array(
            [max(PORTION_MIN[kind], int(each.rate * PORTION_SECONDS)) for kind, each in limits]
        )
        begun, last = np.zeros(len(limits), np.int64), np.zeros(len(limits), np.int64)
        for message in messages:
            if type(message) is not AppendBatch:
                portions[-1].append(message)
                continue
            sizes = _costs(message.appends)[:, [kind for kind, _ in limits]]
            ends = begun + np.cumsum(sizes, axis=0)
            # A portion has the appends that begin within the same step of each limit.
            numbers = (ends - sizes) // steps
            is_next = (np.diff(numbers, axis=0, prepend=last[np.newaxis]) != 0).any(axis=1)
            begun, last = ends[-1], numbers[-1]
            places = np.flatnonzero(is_next[1:]) + 1
            first = message.request_id
            parts = message.appends.split(places.tolist())
            for start, part in zip((0, *places.tolist()), parts, strict=True):
                if start or is_next[0]:
                    portions.append([])
                number = first.sequence_number + start
                portions[-1].append(AppendBatch(first._replace(sequence_number=number), part))
        return portions

    def is_untouched(self, now: float) -> bool:
        """Whether a new allowance would be the same."""
        buckets = (self.append_bytes, self.appends, self.read_bytes)
        return all(each is None or each.is_full(now) for each in buckets)


def _bucket(known: TokenBucket | None, rate: int | None, now: float) -> TokenBucket | None:
    if rate is None or known is None:
        return None if rate is None else TokenBucket(rate, now)
    known.change_rate(rate, now)
    return known


class Allowances:
    """See the module."""

    def __init__(self, *, principals_max: int = PRINCIPALS_MAX) -> None:
        self._principals_max = principals_max
        self._policy: Policy | None = None
        """By which the allowances were made; None: one without quotas."""
        self._judged: Policy | None = None
        """The policy that was looked at last."""
        self._known: dict[str, Allowance] = {}
        self._throttled: dict[str, float] = {}
        """Seconds waited, by principal."""

    def __len__(self) -> int:
        return len(self._known)

    def holds(self, policy: Policy | None, clock: Callable[[], float]) -> bool:
        """Whether there are quotas now; `clock` is asked only if the policy is another one."""
        if policy is not self._judged:
            self._adopt(policy, clock())
        return self._policy is not None

    def find(self, policy: Policy | None, principal: str, now: float) -> Allowance | None:
        """Return the allowance of the principal; None: there are no quotas now."""
        if policy is not self._judged:
            self._adopt(policy, now)
        if self._policy is None:
            return None
        if (found := self._known.get(principal)) is None:
            self._make_room(now)
            found = self._known[principal] = Allowance(quota_of(self._policy, principal), now)
        return found

    def note_throttled(self, principal: str, seconds: float) -> None:
        """A connection of the principal has waited so long."""
        is_counted = principal in self._throttled or len(self._throttled) < THROTTLED_PRINCIPALS_MAX
        name = principal if is_counted else OTHER_PRINCIPALS
        self._throttled[name] = self._throttled.get(name, 0.0) + seconds

    def throttled(self) -> tuple[tuple[tuple[str], float], ...]:
        """Return the seconds that connections have waited, by principal."""
        return tuple(((name,), seconds) for name, seconds in sorted(self._throttled.items()))

    def _adopt(self, policy: Policy | None, now: float) -> None:
        self._judged = policy
        holds = policy is not None and policy.mode is Mode.DENY and policy.has_quotas
        self._policy = policy if holds else None
        if self._policy is None:
            self._known.clear()
            return
        for principal, allowance in self._known.items():
            allowance.change(quota_of(self._policy, principal), now)

    def _make_room(self, now: float) -> None:
        if len(self._known) < self._principals_max:
            return
        used = [each for each in self._known.items() if not each[1].is_untouched(now)]
        if len(used) >= self._principals_max:
            used = used[len(used) // 2 :]
        self._known = dict(used)


def append_cost(message: Message) -> tuple[int, int]:
    """Return the appends in a message, and the bytes of their data and locks."""
    if type(message) is not AppendBatch:
        return 0, 0
    appends = message.appends
    data_bytes = sum(map(len, appends.bodies.data))
    return appends.headers.size, data_bytes + LOCK_HASH_BYTES * appends.lock_hashes.size


def _costs(appends: AppendColumns) -> NDArray[np.int64]:
    """Return the same of each append, in a row."""
    costs = np.ones((len(appends), 2), np.int64)
    costs[:, 1] = [*map(len, appends.bodies.data)]
    costs[:, 1] += LOCK_HASH_BYTES * appends.lock_counts.sum(axis=1, dtype=np.int64)
    return costs
