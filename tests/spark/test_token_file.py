"""Spark with a token in place of a certificate, at a server that denies what it does not grant."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import waltz
from tests.server.builders import PARTITION
from tests.server.test_token_clients import OTHER, STRANGE, TOKEN, Setting, play
from waltz.types import TlsSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_reads_what_the_name_of_its_token_is_granted(
    spark: SparkSession, tmp_path: Path
) -> None:
    reader, writer, strange = (tmp_path / each for each in ("reader", "writer", "strange"))
    for path, token in ((reader, OTHER), (writer, TOKEN), (strange, STRANGE)):
        path.write_text(f"{token}\n")

    def use(address: str, authorities: str) -> None:
        def read(token: Path) -> list[bytes]:
            source = spark.read.format("waltz").option("cluster", address)
            source = source.option("tlsCa", authorities).option("tokenFile", str(token))
            return [bytes(row.data) for row in source.load().orderBy("transaction_id").collect()]

        tls = TlsSettings(authorities=authorities, token_file=str(writer))
        with waltz.open_client(
            address, waltz.NoCallbacks(), tls=tls, partitions=[PARTITION]
        ) as client:
            for data in (b"one", b"two"):
                client.append(PARTITION, data)
        assert read(reader) == [b"one", b"two"]
        with pytest.raises(PySparkException, match="token"):
            read(strange)

    async def scene(setting: Setting) -> None:
        address = f"waltz://{setting.server.address}"
        await asyncio.to_thread(use, address, setting.files.authorities)

    play(tmp_path, scene)
