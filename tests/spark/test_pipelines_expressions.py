"""Measures are one aggregate that can be added to, and every expression always gives the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from waltz.errors import ConfigurationError
from waltz.spark.pipelines.expressions import expect_own_java
from waltz.spark.pipelines.frames import judged_layouts
from waltz.spark.pipelines.tables import parse_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FIELDS = {"a": "bigint", "b": "int", "s": "string", "d": "double", "t": "timestamp"}
DECODE = {"fields": {**FIELDS, "xs": "array<bigint>"}}


def judge(spark: SparkSession, **changed: Any) -> None:
    table = {"keys": {"k": "a"}, "measures": {"n": "count(*)"}, **changed}
    judged_layouts(spark, parse_tables({"t": table}, DECODE))


@pytest.mark.parametrize(
    ("measure", "fault"),
    [
        ("count(distinct a)", "cannot be added; make a table with the expression among its keys"),
        ("sum(distinct a)", "cannot be added"),
        ("max(b) - min(b)", "surrounds the aggregates; keep each aggregate as a measure of"),
        ("sum(a) / count(a)", "surrounds the aggregates"),
        ("count(a) + count(b)", "surrounds the aggregates"),
        ("sum(a) over (partition by b)", "surrounds the aggregates"),
        ("sum(a) filter (where b > 0)", "instead of FILTER write the condition into the measure"),
        ("first(a) filter (where b > 0)", "instead of FILTER"),
        ("first(a ignore nulls)", "IGNORE NULLS depends on how transactions are batched"),
        ("count(a, b)", "expected count of one expression"),
        ("min(a, b)", "expected min of one expression"),
        ("first(a, true)", "expected first of one expression"),
        ("max(count(a))", "not of one row alone; aggregates are measures"),
        ("sum(a) -- )", "PARSE_SYNTAX_ERROR"),
        ("sum(/* ) */ a)", None),
        ("min(rand())", "rand may give another value each time"),
        ("max(uuid())", "uuid may give another value each time"),
        ("max(monotonically_increasing_id())", "monotonically_increasing_id may give"),
        ("max(input_file_name())", "input_file_name may give"),
        ("max(spark_partition_id())", "may give another value each time"),
        ("max(aes_encrypt(data, '0000111122223333'))", "aes_encrypt may give another value"),
        ("max(element_at(transform(xs, x -> rand()), 1))", "rand may give"),
        ("count_if(t < now())", "depends on the time, place or user of the run"),
        ("min(current_user())", "depends on the time, place or user of the run"),
        ("max(date_diff(current_date(), t))", "depends on the time, place or user of the run"),
        ("max(timestamp'now')", "depends on the time, place or user of the run"),
        ("max(cast('to' || 'day' as date))", "depends on the time, place or user of the run"),
        ("max(to_date('yesterday'))", "depends on the time, place or user of the run"),
        ("max((select 1))", "a subquery reads data outside of the log"),
        ("max(row_number() over (order by a))", "not of one row alone"),
        ("sum(explode(xs))", "not of one row alone"),
        ("sum(d)", "n is double; expected numbers, texts"),
        ("sum(cast(d as decimal(20, 2)))", r"n is decimal\(30,2\); expected numbers"),
        ("min(s collate UTF8_LCASE)", "expected numbers, texts without a collation"),
        ("sum(", None),
    ],
)
def test_a_measure_that_cannot_be_added_to_is_refused_by_name(
    spark: SparkSession, measure: str, fault: str | None
) -> None:
    if fault is None and measure.endswith("a)"):
        judge(spark, measures={"n": measure})
        return
    with pytest.raises(ConfigurationError, match=rf"(?s)^WALTZ-1007 table t: .*{fault or ''}"):
        judge(spark, measures={"n": measure})


@pytest.mark.parametrize(
    "measure",
    [
        *(
            "count(*)",
            "count( a )",
            "count_if(a > 0 and s like 'x)%')",
            "sum(a + b)",
            "sum(if(a>0,1,0))",
        ),
        *("min(d)", "max(to_date(s))", "first(xs[0])", "last(struct(a, b).a)", "max(upper(s))"),
        *("min(cast('2026-01-01' as date))", "max(transform(xs, x -> x + 1)[0])", "sum(hash(s))"),
    ],
)
def test_one_aggregate_of_a_row_is_taken(spark: SparkSession, measure: str) -> None:
    judge(spark, measures={"n": measure})


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"where": "rand() < 0.5"}, "where is 'rand.. < 0.5': rand may give another value"),
        ({"where": "t > current_timestamp()"}, "where is .* depends on the time"),
        ({"keys": {"k": "uuid()"}}, "key k is 'uuid..': uuid may give another value"),
        ({"keys": {"k": "sum(a)"}}, "key k is 'sum.a.', which is not of one row alone"),
        ({"each": "shuffle(xs)"}, "each is 'shuffle.xs.': shuffle may give another value"),
        ({"each": "a"}, "each is no array"),
        ({"keys": {"k": "s collate UTF8_LCASE"}}, "k is string collate UTF8_LCASE; expected"),
        ({"each": "xs", "where": "element < rand()"}, "where is .*rand may give another value"),
    ],
)
def test_keys_conditions_and_elements_always_give_the_same(
    spark: SparkSession, changed: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s)^WALTZ-1007 table t: {fault}"):
        judge(spark, **changed)


def test_what_a_session_knows_and_the_definition_does_not_is_refused(spark: SparkSession) -> None:
    spark.udf.register("waltz_twice", lambda each: each * 2, "bigint")
    spark.sql("DECLARE OR REPLACE VARIABLE waltz_limit INT DEFAULT 7")
    with pytest.raises(ConfigurationError, match="with a function registered in the session"):
        judge(spark, measures={"n": "sum(waltz_twice(a))"})
    with pytest.raises(ConfigurationError, match="with a session variable"):
        judge(spark, where="a < waltz_limit")


def test_sums_want_casts_and_additions_that_fail_instead_of_wrapping(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        judge(spark, measures={"n": "max(a)"})
        with pytest.raises(ConfigurationError, match=r"spark\.sql\.ansi\.enabled off .* wraps"):
            judge(spark, measures={"n": "sum(a)"})
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def test_a_session_of_spark_connect_is_named() -> None:
    class Connected:
        """What is looked at: a session of Spark Connect has no Java of its own."""

    with pytest.raises(
        ConfigurationError, match=r"one of Spark Connect, which .*: unset SPARK_REMOTE"
    ):
        expect_own_java(Connected())  # type: ignore[arg-type]
