"""Opens derived tables by what keeps them."""

from __future__ import annotations

from waltz.spark.pipelines.bucket_tables import BucketTables
from waltz.spark.pipelines.definition import PipelineDefinition
from waltz.spark.pipelines.delta_tables import DeltaTables
from waltz.spark.pipelines.table_store import TableStore
from waltz.spark.pipelines.target import Target


def open_tables(definition: PipelineDefinition, *, create: bool) -> Target:
    """Return the tables at the definition's target, to be closed.

    Raises NotFoundError: there are none, and they are not to be made; ConfigurationError: a package
    is missing.
    """
    if definition.target_kind == "delta":
        return open_delta(definition, create=create)
    return TableStore(definition.target, create=create)


def open_delta(definition: PipelineDefinition, *, create: bool) -> DeltaTables:
    """Return the Delta tables at the definition's target, to be closed. Raises as `open_tables`."""
    if definition.url is not None:
        return BucketTables(definition.url, create=create, buckets=definition.buckets)
    return DeltaTables(definition.target, create=create, buckets=definition.buckets)
