"""Opens derived tables by what keeps them."""

from __future__ import annotations

from waltz.spark.pipelines.definition import PipelineDefinition
from waltz.spark.pipelines.delta_tables import DeltaTables
from waltz.spark.pipelines.iceberg_tables import IcebergTables
from waltz.spark.pipelines.table_store import TableStore
from waltz.spark.pipelines.target import Target


def open_tables(definition: PipelineDefinition, *, create: bool) -> Target:
    """Return the tables at the definition's target, to be closed.

    Raises NotFoundError: there are none, and they are not to be made; ConfigurationError: a package
    is missing.
    """
    if definition.target_kind == "delta":
        return DeltaTables(definition.target, create=create, buckets=definition.buckets)
    if definition.target_kind == "iceberg":
        return IcebergTables(definition.target, create=create, buckets=definition.buckets)
    return TableStore(definition.target, create=create)
