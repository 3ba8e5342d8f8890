"""Decides whether a checkpoint, a target of a pipeline or a plan may follow the log of now.

Owns the words of the refusal, which carry a code: Spark keeps only the text of an error. The
judgement is that of the log's `histories` (docs/decisions/0050-who-follows-which-history.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from waltz import Histories
from waltz.errors import HistoryChangedError
from waltz.spark.codes import HISTORY_CHANGED
from waltz.types import PartitionId, TransactionId


def expect_history(
    histories: Histories,
    history: UUID | None,
    next_ids: Mapping[PartitionId, TransactionId],
    *,
    who: str,
    remedy: str,
) -> None:
    """Check that `who` has taken in `history` up to before `next_ids` and may follow the log on.

    `history` None is the first one. Raises HistoryChangedError: a restore has ended it before.
    """
    for partition_id, end in sorted(next_ids.items()):
        try:
            histories.check(
                partition_id, history, end - 1, who=who, another_log=remedy, abandoned=remedy
            )
        except HistoryChangedError as error:
            raise HistoryChangedError(f"{HISTORY_CHANGED} {error}") from None


def later_history(histories: Histories) -> UUID | None:
    """Return the history of what the log has now, as it is kept: None for the first one, so that
    what was kept of a log that nobody has restored is as earlier releases keep it."""
    return None if histories.current == histories.cluster_key else histories.current
