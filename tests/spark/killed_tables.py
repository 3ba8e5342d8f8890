"""Takes batches into the tables of a format until it is done, to be killed at any moment.

python -m tests.spark.killed_tables FORMAT DIRECTORY BATCHES
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

from tests.spark.tables_by_value import CLUSTER, LAYOUTS, Event, batch, ranged
from waltz.spark.pipelines.definition import PipelineDefinition, TargetKind
from waltz.spark.pipelines.open_tables import open_tables
from waltz.spark.pipelines.table_store import BlockFacts
from waltz.types import PartitionId

PER_BATCH = 10


def event(transaction_id: int) -> Event:
    """Return the only row of a transaction: half of them have a key of their own."""
    key = transaction_id if transaction_id % 2 else transaction_id % 14
    return (f"k{key}", transaction_id % 3, transaction_id, 0, transaction_id)


def main(kind: TargetKind, directory: Path, batches: int) -> None:
    changes = 10_000 if kind == "sqlite" else None
    definition = PipelineDefinition("tables", "none", directory, target_kind=kind, changes=changes)
    with open_tables(definition, create=True) as store:
        store.prepare(CLUSTER, "definition", LAYOUTS)
        while (first := store.marks().get(PartitionId(0), 0)) < batches * PER_BATCH:
            end = store.planned().get(PartitionId(0), first + PER_BATCH)
            store.add(
                batch(
                    [event(each) for each in range(first, end)],
                    [ranged(first, end)],
                    [BlockFacts(PartitionId(0), 0, end - first, first + 1)],
                )
            )
            print(end, flush=True)


if __name__ == "__main__":
    main(cast("TargetKind", sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
