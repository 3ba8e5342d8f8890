"""Transactions side by side: what a reader yields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from waltz.client.fed import Fed
from waltz.types import TransactionId


@dataclass(frozen=True, slots=True, eq=False)
class TransactionColumns:
    """Transactions with dense IDs from `first_transaction_id`, one entry per column each; never
    none. `request_ids` has 16 bytes per transaction."""

    first_transaction_id: TransactionId
    request_ids: bytes
    headers: NDArray[np.int32]
    data: list[bytes]

    def __len__(self) -> int:
        return len(self.data)


def columns_of(fed: Sequence[Fed], data: list[bytes]) -> TransactionColumns:
    """Put feed and bodies, at least one of each, side by side."""
    assert len(fed) == len(data) > 0
    return TransactionColumns(
        fed[0].transaction_id,
        np.array([each.request_id for each in fed], ">i4").tobytes(),
        np.array([each.header for each in fed], np.int32),
        data,
    )
