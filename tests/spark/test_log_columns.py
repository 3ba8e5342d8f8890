"""The columns that Spark is told of, by value."""

from __future__ import annotations

import pytest
from pyspark.sql.types import TimestampType

from waltz.errors import ConfigurationError
from waltz.spark.log_columns import decoded_schema, log_schema


def test_every_column_is_there_and_may_be_null() -> None:
    assert log_schema().simpleString() == (
        "struct<partition:int,transaction_id:bigint,request_id:binary,header:int,data:binary>"
    )
    assert all(field.nullable for field in log_schema(with_times=True).fields)


def test_data_is_left_out_and_times_come_last_if_they_are_asked_for() -> None:
    names = ["partition", "transaction_id", "request_id", "header"]
    assert log_schema(with_data=False).names == names
    with_times = log_schema(with_times=True)
    assert with_times.names == [*names, "data", "committed_after", "committed_before"]
    assert [field.dataType for field in with_times.fields[5:]] == [TimestampType()] * 2


def test_data_as_text_is_a_string_and_other_data_needs_a_schema() -> None:
    schema = log_schema()
    assert decoded_schema(schema, None, "fail") == schema
    text = decoded_schema(schema, "string", "quarantine")
    assert text.simpleString().endswith("header:int,data:string,undecodable:binary>")
    assert decoded_schema(log_schema(with_data=False), "json", "fail").names == schema.names[:4]
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 option serializer is 'json'"):
        decoded_schema(schema, "json", "fail")
