"""Opens derived tables by what keeps them."""

from __future__ import annotations

from waltz.spark.pipelines.definition import PipelineDefinition
from waltz.spark.pipelines.delta_tables import DeltaTables
from waltz.spark.pipelines.iceberg_tables import IcebergTables
from waltz.spark.pipelines.object_store_tables import ObjectStoreTables
from waltz.spark.pipelines.table_store import TableStore
from waltz.spark.pipelines.target import Target


def open_tables(definition: PipelineDefinition, *, create: bool) -> Target:
    """Return the tables at the definition's target, to be closed.

    Raises NotFoundError: there are none, and they are not to be made; ConfigurationError: a package
    is missing.
    """
    target, buckets = definition.target, definition.buckets
    if definition.url is not None:
        return ObjectStoreTables(definition.url, create=create, buckets=buckets)
    if definition.target_kind == "delta":
        return DeltaTables(target, create=create, buckets=buckets)
    if definition.target_kind == "iceberg":
        return IcebergTables(target, create=create, buckets=buckets)
    return TableStore(target, create=create, changes=definition.changes)
