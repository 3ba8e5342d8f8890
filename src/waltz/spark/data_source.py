"""The data source `waltz` as Spark sees it: `spark.read.format("waltz").option("cluster", …)`, and
the same with `spark.readStream`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from waltz.spark.options import parse_options
from waltz.spark.reader import WaltzReader
from waltz.spark.schema import arrow_schema, log_schema
from waltz.spark.stream import WaltzStreamReader


class WaltzDataSource(DataSource):
    """The committed transactions of a cluster, one row each (PS-01).

    Options: `cluster` (`waltz://` and servers, or the coordinator's host:port; required),
    `partitions` ("0-3,7"),
    `startingOffsets` and `endingOffsets` (earliest, latest, or JSON of partition to transaction ID;
    the end is not read; a stream has none, and starts at latest unless told), `failOnDataLoss`,
    `maxTransactionsPerTrigger` (of a stream), `minPartitions`, `rowsPerBatch`, and `tlsCa`,
    `tlsCert`, `tlsKey` (PEM files). A schema of some of the columns is honoured: what is not asked
    for does not cross into Spark.
    """

    @classmethod
    def name(cls) -> str:
        return "waltz"

    def schema(self) -> StructType:
        return log_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of some or all columns. Raises ConfigurationError."""
        return WaltzReader(parse_options(self.options), arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream of some or all columns. Raises ConfigurationError."""
        return WaltzStreamReader(parse_options(self.options, is_stream=True), arrow_schema(schema))
