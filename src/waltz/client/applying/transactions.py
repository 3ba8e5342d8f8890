"""Transactions as an application gets them: they become objects only when they are asked for.

Owns that each object is made once, so that fetched data stays. Knows nothing of feeds and marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, repeat
from typing import TYPE_CHECKING, NamedTuple, overload

from waltz.arrays import np
from waltz.client.appends.submission import Submission
from waltz.client.bulk import Bulk
from waltz.client.transaction import FetchData, Transaction
from waltz.types import ClientId, PartitionId, RequestId, TransactionId
from waltz.wire.fed import FedRuns

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ClientRun(NamedTuple):
    """Transactions with dense IDs that one client has written.

    places  their places in the sequence that was asked about.
    """

    partition_id: PartitionId
    client_id: ClientId
    first_transaction_id: TransactionId
    places: slice


def client_runs(transactions: Sequence[Transaction]) -> Iterator[ClientRun]:
    """Yield the runs of transactions that one client each has written, in order.

    `transactions`, at least one, are those that a callback was given. They do not become objects
    here, so a callback can pass over those of some clients at little cost.
    """
    requests: Iterator[tuple[RequestId, int]]
    if isinstance(transactions, Transactions):
        first, requests = transactions.first_transaction_id, transactions.request_runs()
    else:
        first = transactions[0].transaction_id
        requests = ((each.request_id, 1) for each in transactions)
    place = 0
    for (partition_id, client_id), found in groupby(requests, _writer):
        count = sum(each for _, each in found)
        places = slice(place, place + count)
        yield ClientRun(partition_id, client_id, TransactionId(first + place), places)
        place = places.stop


def _writer(run: tuple[RequestId, int]) -> tuple[PartitionId, ClientId]:
    request_id, _ = run
    return request_id.partition_id, request_id.client_id


class Transactions(Sequence[Transaction]):
    """Transactions of one partition with dense IDs, at least one, as a sequence and as columns.

    A callback that reads only the columns does not pay for objects.
    """

    def __init__(
        self,
        fed: FedRuns,
        fetch: FetchData,
        own: Mapping[TransactionId, Submission] | None = None,
        bulks: Sequence[Bulk] = (),
    ) -> None:
        """`own` and rows of `bulks` were sent by this client: their data is here already."""
        self._fed = fed
        self._fetch = fetch
        self._own = own or {}
        self._bulks = bulks
        self._made: list[Transaction] | None = None

    def __len__(self) -> int:
        return len(self._fed)

    @overload
    def __getitem__(self, place: int) -> Transaction: ...
    @overload
    def __getitem__(self, place: slice) -> list[Transaction]: ...
    def __getitem__(self, place: int | slice) -> Transaction | list[Transaction]:
        return self._objects()[place]

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._objects())

    @property
    def partition_id(self) -> PartitionId:
        first, _ = self._fed.runs[0].request_runs[0]
        return first.partition_id

    @property
    def first_transaction_id(self) -> TransactionId:
        return self._fed.first_transaction_id

    @property
    def last_transaction_id(self) -> TransactionId:
        return self._fed.last_transaction_id

    @property
    def headers(self) -> NDArray[np.int32]:
        """Return the headers, one per transaction."""
        return np.concatenate([run.headers for run in self._fed.runs])

    def request_runs(self) -> Iterator[tuple[RequestId, int]]:
        """Yield the first request ID of each run of dense ones, and its length."""
        for run in self._fed.runs:
            yield from run.request_runs

    def after(self, transaction_id: TransactionId) -> Transactions:
        """Return the transactions with higher IDs, if there are any; objects made already are
        kept."""
        count = transaction_id - self.first_transaction_id + 1
        left = Transactions(self._fed.after(transaction_id), self._fetch, self._own, self._bulks)
        if self._made is not None:
            left._made = self._made[count:]
        return left

    def first(self, count: int) -> Transactions:
        """Return the first `count` transactions, at least one; objects made already are kept."""
        made = self._objects()[:count]
        last = TransactionId(self.first_transaction_id + len(made) - 1)
        part = Transactions(self._fed.through(last), self._fetch, self._own, self._bulks)
        part._made = made
        return part

    def _objects(self) -> list[Transaction]:
        if self._made is None:
            data = iter(self._data())
            made: list[Transaction] = []
            for run in self._fed.runs:
                made += map(
                    Transaction,
                    run.request_ids(),
                    run.transaction_ids(),
                    run.headers.tolist(),
                    data,
                    repeat(self._fetch),
                )
            self._made = made
        return self._made

    def _data(self) -> list[bytes | None]:
        """Return the data that is here already, None for transactions whose data is not."""
        first = self.first_transaction_id
        found: list[bytes | None] = []
        for run in self._fed.runs:
            found += [None] * len(run.headers) if run.data is None else run.data
        for transaction_id, submission in self._own.items():
            draft = submission.draft  # the loop's thread may take the draft away
            if draft is not None and transaction_id >= first:
                found[transaction_id - first] = draft.plain_data
        for bulk in self._bulks:
            for number, data in bulk.data_between(first, self.last_transaction_id):
                found[number - first] = data
        return found
