"""The machine of one partition's delivery: post, keep the progress, wait after a refusal.

Owns the order: a batch is posted only after all transactions before it were accepted and that was
kept. Nothing is passed over: after a refusal the same transactions are posted again, for ever
unless the bridge runs once. Knows no HTTP, no file and no reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

RETRY_SECONDS_MIN: Final = 0.5
"""Pause after the first refusal; it doubles up to the configured longest pause."""

RETRY_AFTER_SECONDS_MAX: Final = 300.0
"""A receiver's Retry-After counts up to this: no receiver stops a bridge for days."""

DOUBLINGS_MAX: Final = 32
"""Doublings of the pause that are computed; 0.5 s doubled so often exceeds every longest pause."""

ONCE_ATTEMPTS_MAX: Final = 5
"""Attempts in a row after which a bridge that runs once gives a partition up."""

GRACE_SECONDS: Final = 5.0
"""Time that a bridge which is told to stop gives a post under way."""


# Events


@dataclass(frozen=True, slots=True)
class Sending:
    """Transactions are there, and are posted from now on."""

    last: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """All that is wanted of the transactions up to `last` was answered with 2xx; `posted` of them
    were wanted."""

    last: int
    posted: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The post was not accepted, or there is no answer, or the log could not be read.

    is_for_content       another attempt with fewer transactions may get further.
    retry_after_seconds  what the receiver asks for; None: nothing.
    jitter               from 0 to 1, at random.
    """

    text: str
    jitter: float
    is_for_content: bool = False
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """The progress is on the disk."""


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A server has said that the log ends before the next transaction to post."""


@dataclass(frozen=True, slots=True)
class Failed:
    """No attempt of this process can help."""

    text: str


@dataclass(frozen=True, slots=True)
class StopAsked: ...


Event: TypeAlias = Sending | Accepted | Refused | Saved | CaughtUp | Failed | StopAsked


# Effects


@dataclass(frozen=True, slots=True)
class Post:
    """Take transactions from `first` on, at most `count_max`, and post those that are wanted."""

    first: int
    count_max: int


@dataclass(frozen=True, slots=True)
class Save:
    """Keep durably that the next transaction to post is `next_id`. If not `is_due`, nothing was
    posted since: it may be kept somewhat later."""

    next_id: int
    is_due: bool


@dataclass(frozen=True, slots=True)
class Abandon:
    """End the post under way, if there is one: what it does is unknown."""


Effect: TypeAlias = Post | Save | Abandon


class Phase(Enum):
    STARTING = "starting"
    WAITING = "waiting for the log"
    POSTING = "posting"
    SAVING = "saving"
    PAUSED = "paused"
    ENDED = "ended"


class Delivery:
    """One partition. `closed` once it has ended: stopped, done (`end` was reached) or failed."""

    def __init__(
        self,
        next_id: int,
        *,
        count_max: int,
        retry_seconds_max: float,
        end: int | None = None,
    ) -> None:
        """`end`: with it the delivery ends before this transaction, or after a few attempts."""
        self.next_id = next_id
        self.phase = Phase.STARTING
        self.trouble: str | None = None
        self.final_error: str | None = None
        self.posted = 0
        self.posts = 0
        self.refusals = 0
        self.refused_in_a_row = 0
        self.last_sent: int | None = None
        self._count_max = count_max
        self._count = count_max
        self._retry_seconds_max = retry_seconds_max
        self._end = end
        self._resume_at: float | None = None
        self._stop_at: float | None = None
        self._is_stopping = False
        self._is_saved = True
        self._is_due = False

    @property
    def closed(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def is_complete(self) -> bool:
        """Whether all before the end was accepted, of a delivery that has one."""
        return self._end is not None and self.next_id >= self._end

    @property
    def deadline(self) -> float | None:
        if self.closed:
            return None
        if self.phase is Phase.STARTING:
            return 0.0
        times = [each for each in (self._resume_at, self._stop_at) if each is not None]
        return min(times, default=None)

    def step(self, events: Sequence[Event], now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        for event in events:
            if self.closed:
                break
            effects += self._take(event, now)
        if self.phase is Phase.STARTING:
            effects += self._go_on()
        if self._resume_at is not None and now >= self._resume_at:
            self._resume_at = None
            effects += self._go_on()
        if self._stop_at is not None and now >= self._stop_at:
            effects += self._close()
        return effects

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert (self._resume_at is not None) == (self.phase is Phase.PAUSED), self.phase
        assert 1 <= self._count <= self._count_max
        assert self.next_id >= 0

    def _take(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Sending(last) if self.phase is Phase.WAITING:
                self.phase = Phase.POSTING
                self.last_sent = last
            case Accepted(last, posted) if self.phase in (Phase.WAITING, Phase.POSTING):
                self.posted += posted
                self.posts += posted > 0
                self.next_id = last + 1
                self._count = min(2 * self._count, self._count_max)
                self.last_sent = None
                self._note_success()
                self._is_due = posted > 0
                self._is_saved = False
                return self._go_on()
            case Saved() if self.phase is Phase.SAVING:
                self._is_saved = True
                self._note_success()
                return self._go_on()
            case CaughtUp() if self.phase is Phase.WAITING:
                self._note_success()
            case Refused() if self.phase in (Phase.WAITING, Phase.POSTING, Phase.SAVING):
                return self._refused(event, now)
            case Failed(text):
                self.trouble = self.final_error = text
                return self._close()
            case StopAsked():
                self._is_stopping = True
                if self.phase in (Phase.POSTING, Phase.SAVING):
                    self._stop_at = now + GRACE_SECONDS
                else:
                    return self._close()
            case _:
                pass  # the answer to what was given up
        return []

    def _note_success(self) -> None:
        """Nothing is wrong from now on, although the next post may be far away: the log may be
        idle."""
        self.refused_in_a_row = 0
        self.trouble = None

    def _refused(self, event: Refused, now: float) -> list[Effect]:
        self.refusals += 1
        self.refused_in_a_row += 1
        self.trouble = event.text
        if event.is_for_content:
            # One transaction that a receiver cannot take is to hold up no other before it.
            sent = self._count if self.last_sent is None else self.last_sent - self.next_id + 1
            self._count = max(1, min(self._count, sent) // 2)
        if self._is_stopping or (
            self._end is not None
            and self.refused_in_a_row >= ONCE_ATTEMPTS_MAX
            and (self._count == 1 or not event.is_for_content)
        ):
            return self._close()
        doublings = min(self.refused_in_a_row - 1, DOUBLINGS_MAX)
        pause = min(RETRY_SECONDS_MIN * 2.0**doublings, self._retry_seconds_max)
        pause *= 0.5 + event.jitter / 2
        if event.retry_after_seconds is not None:
            asked = min(max(event.retry_after_seconds, 0.0), RETRY_AFTER_SECONDS_MAX)
            # The jitter is added: all partitions are told the same time.
            pause = max(pause, asked + RETRY_SECONDS_MIN * event.jitter)
        self.phase = Phase.PAUSED
        self._resume_at = now + pause
        return []

    def _go_on(self) -> list[Effect]:
        if not self._is_saved:
            self.phase = Phase.SAVING
            return [Save(self.next_id, self._is_due)]
        if self._is_stopping or self.is_complete:
            return self._close()
        self.phase = Phase.WAITING
        self.last_sent = None
        return [Post(self.next_id, self._count)]

    def _close(self) -> list[Effect]:
        self.phase = Phase.ENDED
        self._resume_at = self._stop_at = None
        return [Abandon()]
