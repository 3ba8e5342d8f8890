"""Questions for the outcome of single appends, asked until the answer is definite.

Owns which questions are open, from where each goes on, and when to ask again. Knows no connection:
the owner of a connection sends what `ask` returns, and again on every new connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from waltz.errors import LocalProtocolError
from waltz.types import RequestId, TransactionId
from waltz.wire.batch_protocol import Outcome, OutcomeRequest, OutcomeResponse

OUTCOME_RETRY_SECONDS: Final = 0.2
"""Until an outcome that nobody knows yet is asked for again."""


@dataclass(frozen=True, slots=True)
class OutcomeKnown:
    """The append is transaction `transaction_id`; None: it is not in the log and never will be."""

    request_id: RequestId
    transaction_id: TransactionId | None


@dataclass(frozen=True, slots=True)
class OutcomeRefused:
    """Nobody can say what became of an append: the request was never made, or the server cannot be
    asked."""

    request_id: RequestId
    error: LocalProtocolError


class OutcomeQuestions:
    """The open questions of one partition."""

    def __init__(self) -> None:
        self.after: dict[RequestId, TransactionId] = {}
        """Behind what to look for each of those that are open."""
        self._unsent: dict[RequestId, None] = {}
        self._again: dict[RequestId, float] = {}

    @property
    def deadline(self) -> float | None:
        return min(self._again.values(), default=None)

    def want(self, request_id: RequestId, after: TransactionId) -> None:
        """Somebody wants to know; the append is not at `after` or before."""
        if request_id in self.after:
            return
        self.after[request_id] = after
        self._unsent[request_id] = None

    def reset(self) -> None:
        """The connection is gone: all has to be asked anew."""
        self._unsent = dict.fromkeys(self.after)
        self._again.clear()

    def ask(self, now: float, *, knows_batches: bool) -> list[OutcomeRequest | OutcomeRefused]:
        """Return the questions to ask now, refused if the server does not know them."""
        for request_id in [each for each, at in self._again.items() if at <= now]:
            del self._again[request_id]
            self._unsent[request_id] = None
        unsent, self._unsent = self._unsent, {}
        if knows_batches:
            return [OutcomeRequest(each, self.after[each]) for each in unsent]
        for each in unsent:
            del self.after[each]
        error = LocalProtocolError(
            "the server speaks version 4 of the client protocol or an earlier one, which has no"
            " question for the outcome of an append; upgrade the servers"
        )
        return [OutcomeRefused(each, error) for each in unsent]

    def receive(self, response: OutcomeResponse, now: float) -> OutcomeKnown | None:
        """Return what is known now; None if it has to be asked again, or was not asked."""
        request_id = response.request_id
        if request_id not in self.after:
            return None
        match response.outcome:
            case Outcome.COMMITTED:
                self._forget(request_id)
                return OutcomeKnown(request_id, response.transaction_id)
            case Outcome.NOT_COMMITTED:
                self._forget(request_id)
                return OutcomeKnown(request_id, None)
            case Outcome.NOT_FOUND:
                self.after[request_id] = max(self.after[request_id], response.transaction_id)
                self._unsent[request_id] = None
            case Outcome.UNDECIDED:
                self._again[request_id] = now + OUTCOME_RETRY_SECONDS
        return None

    def _forget(self, request_id: RequestId) -> None:
        """It is known, also if an earlier answer was that it has to be asked again."""
        del self.after[request_id]
        self._unsent.pop(request_id, None)
        self._again.pop(request_id, None)
