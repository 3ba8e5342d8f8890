"""The data source `waltz` as Spark sees it: `spark.read.format("waltz").option("cluster", …)`.

A batch source only: it defines no `streamReader`, so Spark refuses `readStream` by itself.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from waltz.spark.options import parse_options
from waltz.spark.reader import WaltzReader
from waltz.spark.schema import arrow_schema, log_schema


class WaltzDataSource(DataSource):
    """The committed transactions of a cluster, one row each (PS-01).

    Options: `cluster` (`waltz://` and servers, or the coordinator's host:port; required),
    `partitions` ("0-3,7"),
    `startingOffsets` and `endingOffsets` (earliest, latest, or JSON of partition to transaction ID;
    the end is not read), `minPartitions`, `rowsPerBatch`, and `tlsCa`, `tlsCert`, `tlsKey`
    (PEM files). A schema of some of the columns is honoured: what is not asked for does not cross
    into Spark.
    """

    @classmethod
    def name(cls) -> str:
        return "waltz"

    def schema(self) -> StructType:
        return log_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of some or all columns. Raises ConfigurationError."""
        return WaltzReader(parse_options(self.options), arrow_schema(schema))
