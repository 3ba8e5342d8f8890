"""A streaming table of moves, and a materialized view of balances, from the log of a cluster.

Each transaction's data is JSON: `{"account": 7, "amount": -20}`. A run of the pipeline appends to
`moves` what the log has beyond its checkpoint, each transaction once, and computes `balances` anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

spark = SparkSession.active()
CLUSTER = spark.conf.get("waltz.cluster")


@dp.table(comment="Each transaction of the log; data that is no JSON is put aside.")
def moves() -> DataFrame:
    return (
        spark.readStream.format("waltz")
        .option("cluster", CLUSTER)
        .option("startingOffsets", "earliest")
        .option("serializer", "json")
        .option("undecodable", "quarantine")
        .schema(
            "partition int, transaction_id bigint,"
            " data struct<account:bigint,amount:bigint>, undecodable binary"
        )
        .load()
    )


@dp.materialized_view(comment="The sum of each account's moves.")
def balances() -> DataFrame:
    return spark.sql(
        "SELECT data.account, sum(data.amount) AS balance, count(*) AS moves"
        " FROM moves WHERE undecodable IS NULL GROUP BY data.account"
    )
