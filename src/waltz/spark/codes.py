"""The stable codes of the data source's errors.

Spark keeps only the text of an error that crosses its processes, so a text that a program may want
to recognise starts with one of these. A code is never given a second meaning.
"""

from __future__ import annotations

from typing import Final

UNKNOWN_OPTION: Final = "WALTZ-1001"
MISSING_OPTION: Final = "WALTZ-1002"
INVALID_OPTION: Final = "WALTZ-1003"
UNKNOWN_COLUMN: Final = "WALTZ-1004"
UNKNOWN_PARTITION: Final = "WALTZ-1005"
INVALID_CHECKPOINT: Final = "WALTZ-1006"
INVALID_DEFINITION: Final = "WALTZ-1007"
INVALID_ROW: Final = "WALTZ-1008"
"""A row that a sink cannot write."""
DEFINITION_CHANGED: Final = "WALTZ-1009"
"""Tables were made with another definition than the one they are to be continued with."""

OUTSIDE_LOG: Final = "WALTZ-2001"
"""The range asked for is not, or no longer, in the log: another cluster, or lost data."""

INCOMPLETE_READ: Final = "WALTZ-2002"
"""The rows read are not the dense run of transactions that was asked for."""

CLUSTER_CHANGED: Final = "WALTZ-2003"
"""The address led a task to another cluster than the one the read was planned on."""

UNAVAILABLE: Final = "WALTZ-2004"
"""The cluster did not answer or refused; asking again may help."""

READ_FAILED: Final = "WALTZ-2005"
"""The cluster's answer was not the one asked for; asking again will not help."""

INVALID_ARCHIVE: Final = "WALTZ-2006"
ARCHIVE_CONFLICT: Final = "WALTZ-2007"
"""Another run has added to the archive; running again continues from there."""

DIFFERENT: Final = "WALTZ-2008"
"""Two copies of the log part ways."""

ROWS_CHANGED: Final = "WALTZ-2009"
"""A task has other rows than an attempt of it had before."""

LOCK_REFUSED: Final = "WALTZ-2010"
LATER_BATCH: Final = "WALTZ-2011"
"""A sink has begun a later batch than the one to be written."""

INVALID_NOTE: Final = "WALTZ-2012"
"""The cluster's note about a sink cannot be read."""

INVALID_SEGMENT: Final = "WALTZ-2013"
"""A storage directory is none, or a segment in it does not check out."""

UNDECODABLE: Final = "WALTZ-2014"
"""Data does not match the schema that it should be decoded to."""

INVALID_TABLES: Final = "WALTZ-2015"
TABLES_CONFLICT: Final = "WALTZ-2016"
"""Another run has added to the tables; running again continues from there."""

HISTORY_CHANGED: Final = "WALTZ-2017"
"""The log was restored from an archive, and no longer has what was read or written."""

CHANGES_MISSING: Final = "WALTZ-2018"
"""The changes of a derived table after a position are not kept; the table is to be read anew."""

NO_JAVA: Final = "WALTZ-3001"


def has_code(error: Exception) -> bool:
    """Return whether the text of `error` starts with a code already."""
    return str(error).startswith("WALTZ-")
