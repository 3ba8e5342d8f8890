"""The data source `waltz` as Spark sees it: `spark.read.format("waltz").option("cluster", …)`, and
the same with `spark.readStream`, `df.write` and `df.writeStream`."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_OPTION
from waltz.spark.log_columns import decoded_schema, log_schema


class WaltzDataSource(DataSource):
    """The committed transactions of a cluster, one row each (PS-01).

    Options: `cluster` (`waltz://` and servers, or the coordinator's host:port; required),
    `clusterKey` (of a sink: the only cluster that it writes to), `partitions` ("0-3,7"),
    `startingOffsets` and `endingOffsets` (earliest, latest, or JSON of partition to transaction ID;
    the end is not read; a stream has none, and starts at latest unless told), `startingTimestamp`
    and `endingTimestamp` (times instead of offsets), `times` (true: with columns of times),
    `headers`, `data`
    (false: without it), `serializer`, `undecodable`, `failOnDataLoss`,
    `maxTransactionsPerTrigger`, `maxBytesPerTrigger` (of a stream), `minPartitions`,
    `rowsPerBatch`, and `tlsCa`, `tlsCert`, `tlsKey` (PEM files), `tokenFile`. A schema of some of
    the columns is honoured: what is not asked for does not cross into Spark.
    """

    @classmethod
    def name(cls) -> str:
        return "waltz"

    def schema(self) -> StructType:
        """Return the columns of a read that asks for no schema of its own.

        Raises ConfigurationError: the data is to be decoded, and no schema says into what.
        """
        given = {key.lower(): value for key, value in self.options.items()}
        return decoded_schema(
            log_schema(
                with_data=given.get("data", "true").lower() != "false",
                with_times=given.get("times", "false").lower() == "true",
            ),
            given.get("serializer"),
            given.get("undecodable", "fail"),
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of some or all columns. Raises ConfigurationError."""
        from waltz.spark.decoding import RowDecoding
        from waltz.spark.spark_options import parse_options

        options = parse_options(self.options)
        decoding = RowDecoding.of(schema, options.serializer, options.undecodable)
        if options.cluster is None:
            from waltz.spark.row_times import expect_no_times

            expect_no_times(decoding.raw)
        if options.path is not None:
            from waltz.spark.segment_reader import WaltzSegmentReader

            return WaltzSegmentReader(options, decoding.raw, decoding=decoding)
        from waltz.spark.reader import WaltzReader

        return WaltzReader(options, decoding.raw, decoding=decoding)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream of some or all columns. Raises ConfigurationError."""
        from waltz.spark.decoding import RowDecoding
        from waltz.spark.spark_options import parse_options
        from waltz.spark.stream import WaltzStreamReader

        options = parse_options(self.options, is_stream=True)
        decoding = RowDecoding.of(schema, options.serializer, options.undecodable)
        return WaltzStreamReader(options, decoding.raw, decoding=decoding)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer that appends a data frame to the log. Raises ConfigurationError."""
        from waltz.spark.sink_rows import check_sink_schema
        from waltz.spark.spark_options import parse_sink_options
        from waltz.spark.writer import WaltzWriter

        if overwrite:
            raise ConfigurationError(
                f"{INVALID_OPTION} the log can only be appended to: write with mode('append')"
            )
        check_sink_schema(schema)
        return WaltzWriter(parse_sink_options(self.options, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer that appends micro-batches to the log. Raises ConfigurationError."""
        from waltz.spark.sink_rows import check_sink_schema
        from waltz.spark.spark_options import parse_sink_options
        from waltz.spark.writer import WaltzStreamWriter

        if overwrite:
            raise ConfigurationError(
                f"{INVALID_OPTION} the log can only be appended to: use outputMode('append')"
            )
        check_sink_schema(schema)
        return WaltzStreamWriter(parse_sink_options(self.options, is_stream=True))
