"""A transaction as the feed has brought it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from waltz.types import RequestId, TransactionId
from waltz.wire.batch_protocol import FeedBatch
from waltz.wire.client_protocol import FeedData


class Fed(NamedTuple):
    """`data` is None if it did not come along."""

    request_id: RequestId
    transaction_id: TransactionId
    header: int
    data: bytes | None = None


def fed_one(message: FeedData) -> Fed:
    """What versions 0 to 4 say of one transaction."""
    return Fed(message.request_id, message.transaction_id, message.header)


def fed_together(message: FeedBatch) -> Sequence[Fed]:
    """What version 5 says of many, in order."""
    feed = message.feed
    first = message.first_transaction_id
    return list(
        map(
            Fed,
            feed.request_ids(),
            map(TransactionId, range(first, first + len(feed))),
            feed.headers.tolist(),
            repeat(None) if feed.bodies is None else feed.bodies.data,
        )
    )
