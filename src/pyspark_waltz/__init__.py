"""What Spark looks for: it imports every top-level module named `pyspark_*` and registers the class
`DefaultSource` in it, so that `format("waltz")` works without a call. Nothing else belongs here.
"""

from waltz.spark.data_source import WaltzDataSource


class DefaultSource(WaltzDataSource):
    """The data source `waltz`."""
