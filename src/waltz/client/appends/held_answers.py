"""Answers of a server that take effect once the client has applied a transaction (CI-20, CI-21).

Before that, a context that is executed again would not see the state that beat it.
"""

from __future__ import annotations

from waltz.client.appends.submission import Submission
from waltz.types import TransactionId
from waltz.wire.client_protocol import FlushResponse


class HeldAnswers:
    """The answers about one partition that wait for their transaction."""

    def __init__(self) -> None:
        self.failures: list[tuple[TransactionId, Submission]] = []
        """Contexts, each with the transaction that has beaten it."""
        self.flushes: list[FlushResponse] = []

    def hold_failure(self, submission: Submission, beaten_by: TransactionId) -> None:
        submission.lock_failure = beaten_by
        self.failures.append((beaten_by, submission))

    def hold_flush(self, answer: FlushResponse) -> None:
        if answer not in self.flushes:
            self.flushes.append(answer)

    def is_decided_beyond(self, fed: TransactionId) -> bool:
        """Whether the server has said that an append is decided by what comes after `fed`."""
        return any(answer.transaction_id > fed for answer in self.flushes)

    def take(self, mark: TransactionId) -> tuple[list[Submission], list[FlushResponse]]:
        """Take out the contexts and the flushes whose transaction is applied, up to `mark`."""
        beaten = [each for beaten_by, each in self.failures if beaten_by <= mark]
        self.failures = [held for held in self.failures if held[0] > mark]
        flushed = [each for each in self.flushes if each.transaction_id <= mark]
        self.flushes = [each for each in self.flushes if each.transaction_id > mark]
        return beaten, flushed
