"""The interface of a table format: all that differs between Delta and Iceberg, one table at a time.

`LakeTables` decides what is done to which tables and in which order; a format does it. A format
knows nothing of marks, plans, locks and definitions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.bucket_join import BucketJoin, JoinedBucket
from waltz.spark.pipelines.lake_changes import TableVersions
from waltz.spark.pipelines.table_store import Layout
from waltz.spark.pipelines.target import TidiedTable

TableT = TypeVar("TableT")
"""One version of a table."""

FileT = TypeVar("FileT")
"""A file that a version of a table names."""


class LakeFormat(ABC, Generic[TableT, FileT]):
    """The tables of one format in one place, each by itself."""

    name: ClassVar[str]
    """The name of the format, as it stands in sentences."""

    package: ClassVar[str]
    """The library of the format."""

    state_table: ClassVar[str]
    """The database's table of the number of batches, which also says which format this is."""

    def __init__(self, root: str) -> None:
        """Note the directory, or the URL, that has the tables; nothing is opened yet."""
        self.root = root

    def table_root(self, name: str) -> str:
        """Return the directory or the URL of a table."""
        return f"{self.root}/{name}"

    @abstractmethod
    def conflicts(self) -> tuple[type[Exception], ...]:
        """Return the library's errors that mean a commit of another writer."""

    @abstractmethod
    def faults(self) -> tuple[type[Exception], ...]:
        """Return the library's errors that mean a table that cannot be read or written."""

    @abstractmethod
    def create(self, layout: Layout, buckets: int) -> None:
        """Make a table without rows, unless it is there."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the tables, in order."""

    def directories(self) -> list[str]:
        """Return the names of the directories that have a table or had one, in order."""
        return self.names()

    @abstractmethod
    def opened(self, name: str) -> TableT:
        """Return a table's version of now."""

    @abstractmethod
    def versions(self, name: str) -> TableVersions:
        """Return the versions that are kept of a table."""

    @abstractmethod
    def batches(self, table: TableT) -> int:
        """Return the number of the last batch that a table has."""

    @abstractmethod
    def files(self, table: TableT) -> dict[int, list[FileT]]:
        """Return the files that a version of a table names, by their buckets."""

    @abstractmethod
    def read(self, table: TableT, columns: list[str]) -> Iterator[Any]:
        """Yield the rows of a table as record batches of these columns."""

    @abstractmethod
    def join(
        self,
        table: TableT,
        layout: Layout,
        files: Mapping[int, list[FileT]],
        number: int,
        buckets: int,
    ) -> BucketJoin:
        """Return the work on the buckets that the batch of that number touches; the table has
        `buckets` of them."""

    @abstractmethod
    def commit(
        self,
        table: TableT,
        layout: Layout,
        files: Mapping[int, list[FileT]],
        joined: Sequence[JoinedBucket],
        number: int,
        ranges: Sequence[TransactionRange],
    ) -> None:
        """Name new files in the place of those of the version `table` that they replace, and note
        the number of the batch and the ends of its ranges, in one commit on the disk.

        files    those of that version, by their buckets.
        """

    @abstractmethod
    def tidied(self, name: str, retention_hours: int, delete: bool) -> TidiedTable:
        """Find, and `delete`, the files of one table that are not needed."""
