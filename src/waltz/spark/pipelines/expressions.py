"""Checks the expressions of tables on Spark's own trees, before anything is read.

The tables of a run in many batches equal those of a run in one only if every expression gives the
same value for the same transaction, whenever and wherever it is computed, and every measure is one
aggregate that can be added to. A pattern over the text cannot tell: `max(b) - min(b)` looks like
`max` of something. Spark's parser returns the structure of the text, Spark's analyzer the meaning
of its names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from waltz.errors import ConfigurationError
from waltz.spark.pipelines.tables import Measure, TableDefinition, mistake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL_ROWS: Final = "*"
"""The argument of `count(*)`."""

CLOCK: Final = re.compile(
    r"\b(date|timestamp(_ntz|_ltz)?)\s*['\"]\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE
)
"""A literal that Spark's parser replaces by the time of the run, so that no tree shows it."""

CLOCK_WORDS: Final = ("now", "today", "tomorrow", "yesterday")
DATE_TYPES: Final = ("date", "timestamp", "timestamp_ntz")

UNFLAGGED: Final = ("AesEncrypt",)
"""Expressions that give another value each time although Spark takes them for deterministic."""

OUTSIDE: Final = {
    "VariableReference": "a session variable",
    "ScalaUDF": "a function registered in the session",
    "PythonUDF": "a function registered in the session",
    "ApplyFunctionExpression": "a function of a catalog",
    "HiveSimpleUDF": "a function of a catalog",
    "HiveGenericUDF": "a function of a catalog",
}
"""Expressions whose meaning is no part of the definition, and so not of its fingerprint."""


def expect_own_java(spark: SparkSession) -> None:
    """Raise ConfigurationError if the session is one of Spark Connect, whose trees are in another
    process."""
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigurationError(
            "a pipeline of tables needs a Spark session in this process; this is one of Spark"
            " Connect, which does not show its plans: unset SPARK_REMOTE"
        )


class Judge:
    """Judges the expressions of one table after the other over the columns of one frame."""

    def __init__(self, spark: SparkSession) -> None:
        """Keep the session's parser. Raises ConfigurationError as `expect_own_java`."""
        expect_own_java(spark)
        self._spark = spark
        self._parser = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
        assert spark._jvm is not None  # noqa: SLF001
        patterns = getattr(spark._jvm, "org.apache.spark.sql.catalyst.trees.TreePattern")  # noqa: SLF001
        self._current = patterns.CURRENT_LIKE()
        self._subquery = patterns.PLAN_EXPRESSION()

    def expect_each(self, table: TableDefinition, frame: DataFrame) -> None:
        """Check that `each` gives one value per transaction, always the same. Raises
        ConfigurationError."""
        if table.each is not None:
            self._expect_row_expression(f"table {table.name}: each", table.each, frame)

    def expect_sound(self, table: TableDefinition, frame: DataFrame) -> None:
        """Judge keys, condition and measures; `frame` has the columns that they are over.

        Raises ConfigurationError, naming the expression and the remedy.
        """
        where = f"table {table.name}"
        for name, text in table.keys:
            self._expect_row_expression(f"{where}: key {name}", text, frame)
        if table.where is not None:
            self._expect_row_expression(f"{where}: where", table.where, frame)
        for measure in table.measures:
            place = f"{where}: measure {measure.name}"
            if CLOCK.search(measure.expression):
                raise _clock(place, measure.expression)
            self._expect_one_aggregate(place, measure, frame)
            if measure.expression != ALL_ROWS:
                self._expect_row_expression(place, measure.expression, frame)
        if any(each.function == "sum" for each in table.measures):
            self._expect_checked_sums(where)

    def _expect_checked_sums(self, where: str) -> None:
        if self._spark.conf.get("spark.sql.ansi.enabled") != "true":
            raise mistake(
                f"{where}: with spark.sql.ansi.enabled off a sum beyond 64 bits wraps"
                " silently; leave it on, and use try_cast where a cast may fail"
            )

    def _expect_one_aggregate(self, place: str, measure: Measure, frame: DataFrame) -> None:
        """Check that the text is `function(argument)` and nothing else. Raises
        ConfigurationError."""
        text = f"{measure.function}({measure.expression})"
        tree = self._parsed(place, text)
        kind = tree.getClass().getSimpleName()
        if kind == "UnresolvedFunction":
            called = tree.nameParts().mkString(".").lower()
            arguments = list(_elements(tree.arguments()))
            is_distinct, is_filtered = tree.isDistinct(), tree.filter().isDefined()
            ignores_nulls = _is_given(tree.ignoreNulls())
        elif kind == "AggregateExpression":  # Spark parses first(x) and last(x) to these at once
            function = tree.aggregateFunction()
            called = function.prettyName().lower()
            arguments = [function.children().apply(0)]
            is_distinct, is_filtered = tree.isDistinct(), tree.filter().isDefined()
            ignores_nulls = function.ignoreNulls()
        else:
            raise mistake(
                f"{place} is {text!r}, in which an expression surrounds the aggregates; keep each"
                " aggregate as a measure of its own and compute with them where the table is read"
            )
        if is_distinct:
            raise mistake(
                f"{place} is {text!r}: what is distinct in two batches cannot be added; make a"
                " table with the expression among its keys, whose rows can be counted"
            )
        if is_filtered:
            raise mistake(
                f"{place} is {text!r}: instead of FILTER write the condition into the measure, as"
                " in `sum(if(condition, amount, null))` or `count_if(condition)`, or use `where`"
            )
        if ignores_nulls:
            raise mistake(
                f"{place} is {text!r}: IGNORE NULLS depends on how transactions are batched; use"
                " `where` to leave out transactions without a value"
            )
        if called != measure.function or len(arguments) != 1:
            raise mistake(f"{place} is {text!r}; expected {measure.function} of one expression")
        if measure.expression == ALL_ROWS:
            return
        if arguments[0].getClass().getSimpleName() == "UnresolvedStar":
            raise mistake(f"{place} is {text!r}; expected count(*), or count of an expression")
        if not arguments[0].equals(self._parsed(place, measure.expression)):
            self._expect_row_expression(place, measure.expression, frame)
            raise mistake(f"{place} is {text!r}; leave out comments and write one call only")

    def _parsed(self, place: str, text: str) -> Any:
        from pyspark.errors import PySparkException

        try:
            return self._parser.parseExpression(text)
        except PySparkException as error:
            raise mistake(f"{place}: {_first_line(error)}") from error

    def _expect_row_expression(self, place: str, text: str, frame: DataFrame) -> None:
        """Check that the value depends on the row alone and is always the same. Raises
        ConfigurationError."""
        from pyspark.errors import PySparkException

        if CLOCK.search(text):
            raise _clock(place, text)
        try:
            plan = frame.selectExpr(f"({text}) AS waltz_judged")._jdf.queryExecution().analyzed()  # noqa: SLF001
            base = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        except PySparkException as error:
            raise mistake(f"{place}: {_first_line(error)}") from error
        if plan.getClass().getSimpleName() != "Project" or not plan.child().equals(base):
            raise mistake(
                f"{place} is {text!r}, which is not of one row alone; aggregates are measures, and"
                " windows and generators (explode) cannot be added to: use `each` for elements"
            )
        tree = plan.expressions().apply(0)
        if tree.containsPattern(self._subquery):
            raise mistake(f"{place} is {text!r}: a subquery reads data outside of the log")
        if tree.containsPattern(self._current):
            raise _clock(place, text)
        for node in _nodes(tree):
            self._expect_sound_node(place, text, node)

    def _expect_sound_node(self, place: str, text: str, node: Any) -> None:
        kind = node.getClass().getSimpleName()
        if kind in OUTSIDE:
            raise mistake(
                f"{place} is {text!r} with {OUTSIDE[kind]}, which the definition does not contain;"
                " write it as an expression"
            )
        unsteady = not node.deterministic() and all(
            each.deterministic() for each in _elements(node.children())
        )
        if unsteady or kind in UNFLAGGED:
            raise mistake(
                f"{place} is {text!r}: {node.prettyName()} may give another value each time, so"
                " that nothing could be proven; take the value from the transaction itself"
            )
        if node.dataType().simpleString() in DATE_TYPES and any(
            _is_clock_word(each) for each in _elements(node.children())
        ):
            raise _clock(place, text)


def _is_clock_word(node: Any) -> bool:
    """Return whether an expression is a constant text that Spark takes for the time of the run."""
    if not node.foldable() or node.dataType().simpleString() != "string":
        return False
    value = node.eval(None)
    return value is not None and value.toString().strip().lower().startswith(CLOCK_WORDS)


def _clock(place: str, text: str) -> ConfigurationError:
    return mistake(
        f"{place} is {text!r}, which depends on the time, place or user of the run; take the value"
        " from the transaction itself"
    )


def _is_given(found: Any) -> bool:
    """Return a flag as a boolean: Spark 4.2 has a boolean where 4.3 has an option of one."""
    return found if isinstance(found, bool) else bool(found.isDefined())


def _nodes(tree: Any) -> Iterator[Any]:
    """Yield the nodes of an expression, a parent after its children."""
    for child in _elements(tree.children()):
        yield from _nodes(child)
    yield tree


def _elements(found: Any) -> Iterator[Any]:
    """Yield the elements of a sequence of Scala's."""
    return (found.apply(index) for index in range(found.size()))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
