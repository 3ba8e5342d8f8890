"""The events of OpenLineage that a pipeline tells of its passes: what it has seen in, an event out.

A pass that takes something in is a run of OpenLineage. Names of data sets are those of its naming
rules, classes those of its library, which the extra `lineage` brings. Nothing is told that the
pipeline does not know. Sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import attr
from openlineage.client import event_v2 as ol
from openlineage.client.facet_v2 import (
    InputDatasetFacet,
    error_message_run,
    job_type_job,
    lifecycle_state_change_dataset,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
    storage_dataset,
)
from openlineage.client.naming.dataset import S3, LocalFileSystem

from waltz.errors import WaltzError
from waltz.spark.archive_location import OBJECT_STORE_SCHEME, ArchiveLocation
from waltz.spark.pipelines.definition import PipelineDefinition
from waltz.spark.pipelines.watch import ARCHIVE, BatchSeen, Beginning
from waltz.spark.progress import NextIds

if TYPE_CHECKING:
    from waltz.spark.pipelines.table_store import Layout
    from waltz.spark.pipelines.target import TableWritten

LOG: Final = "log"
"""The name of the one data set of a cluster."""

ERROR_CHARACTERS_MAX: Final = 4_000
"""Characters of an error that are told; Spark's texts have hundreds of lines."""

SCHEMA_PATH: Final = "docs/formats/lineage-marks-1-0-0.json"
"""The schema of `MarksFacet`, in the archive of sources of the package."""

_LAKE_TYPES: Final = {"INTEGER": "bigint", "TEXT": "string", "REAL": "double", "BLOB": "binary"}


def producer_of(version: str) -> str:
    """Return the URI of this release, a package URL."""
    return f"pkg:pypi/waltz-log@{version}"


@attr.define(kw_only=True)
class MarksFacet(InputDatasetFacet):
    """The part of a log that a run has taken in, per partition that has something of it: from the
    transaction ID `start`, to `end`, which is not part of it any more."""

    start: dict[str, int]
    end: dict[str, int]

    def __attrs_post_init__(self) -> None:
        self._schemaURL = f"{self._producer}#{SCHEMA_PATH}"


class LineageRuns:
    """Tells of the passes of one pipeline, one after the other.

    tell     is given each event.
    clock    returns the time, with its zone.
    new_id   returns the ID of a run.
    rebuild  whether each pass replaces what there was.
    """

    def __init__(
        self,
        definition: PipelineDefinition,
        tell: Callable[[ol.RunEvent], None],
        *,
        version: str,
        spark_version: str,
        clock: Callable[[], datetime],
        new_id: Callable[[], UUID],
        rebuild: bool = False,
    ) -> None:
        self._definition, self._tell = definition, tell
        self._version, self._spark_version = version, spark_version
        self._clock, self._new_id = clock, new_id
        self._rebuild = rebuild
        self._facets = _OutputFacets(definition, producer_of(version))
        self.pass_begins()

    def pass_begins(self) -> None:
        """Note the time; nothing is told before there is something to do."""
        self._at = self._clock()
        self._run_id = self._new_id()
        self._is_over = False
        self._beginning: Beginning | None = None
        self._is_told = self._reads_archive = False
        self._ends: NextIds = {}
        self._written: dict[str, TableWritten] = {}
        self._unknown: set[str] = set()

    def log_has(self, ends: NextIds) -> None:
        """Do nothing: an idle pass asks, too."""

    def begins(self, beginning: Beginning) -> None:
        """Tell that a run has started."""
        self._unknown |= set(beginning.from_past)
        self._reads_archive |= _reads_archive(self._definition, beginning)
        if self._beginning is None:
            self._beginning, self._ends = beginning, beginning.marks
        if not self._is_told:
            self._start()

    def took_in(self, batch: BatchSeen) -> None:
        """Note a batch that has become part of the target."""
        self._ends = batch.next_ids
        for name, written in batch.written.items():
            before = self._written.get(name)
            self._written[name] = written if before is None else before + written

    def pass_ended(self, dropped: tuple[str, ...] = ()) -> None:
        """Tell that the run is complete; `dropped` are tables that are no longer there. A pass that
        has found nothing to do tells nothing, unless it was a rebuild."""
        if self._is_told or self._rebuild:
            if not self._is_told:
                self._start()
            self._emit(ol.RunState.COMPLETE, self._clock(), dropped=dropped)
        self._is_told, self._is_over = False, True

    def failed(self, error: BaseException) -> None:
        """Tell that the run has failed, or was stopped by a person; of a pass that has not found
        anything to do yet only a failure is told. What fails after a pass has ended is a run of its
        own."""
        if self._is_over:
            self.pass_begins()
        if isinstance(error, Exception):
            if not self._is_told:
                self._start()
            self._emit(ol.RunState.FAIL, self._clock(), error=error)
        elif self._is_told:
            self._emit(ol.RunState.ABORT, self._clock())
        self._is_told = False

    def _start(self) -> None:
        self._is_told = True
        self._emit(ol.RunState.START, self._at)

    def _emit(
        self,
        state: ol.RunState,
        at: datetime,
        *,
        dropped: tuple[str, ...] = (),
        error: Exception | None = None,
    ) -> None:
        producer = producer_of(self._version)
        facets: dict[str, Any] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                self._spark_version, "spark", self._version, producer=producer
            )
        }
        if error is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX],
                "Python",
                producer=producer,
            )
        kind = job_type_job.JobTypeJobFacet("BATCH", "WALTZ", "PIPELINE", producer=producer)
        job = self._definition.lineage
        assert job is not None
        is_rebuilt = self._rebuild and state is ol.RunState.COMPLETE
        self._tell(
            ol.RunEvent(
                eventType=state,
                eventTime=at.isoformat(timespec="milliseconds"),
                producer=producer,
                run=ol.Run(str(self._run_id), facets),
                job=ol.Job(job.namespace, job.name, {"jobType": kind}),
                inputs=self._inputs(producer),
                outputs=[
                    *self._facets.outputs(
                        self._beginning,
                        {k: v for k, v in self._written.items() if k not in self._unknown},
                        overwritten=is_rebuilt,
                    ),
                    *map(self._facets.dropped, dropped),
                ],
            )
        )

    def _inputs(self, producer: str) -> list[ol.InputDataset]:
        if self._beginning is None:  # the cluster was not reached, so its key is not known
            return []
        marks = self._beginning.marks
        moved = sorted(each for each, end in self._ends.items() if end > marks.get(each, 0))
        facets: dict[str, InputDatasetFacet] = {}
        if moved:
            facets["waltz_marks"] = MarksFacet(
                start={str(each): int(marks.get(each, 0)) for each in moved},
                end={str(each): int(self._ends[each]) for each in moved},
                producer=producer,
            )
        log = ol.InputDataset(f"waltz://{self._beginning.cluster_key}", LOG, inputFacets=facets)
        if not self._reads_archive:
            return [log]
        assert self._definition.archive is not None
        return [log, ol.InputDataset(*_named_archive(self._definition.archive))]


class _OutputFacets:
    """The data sets of a pipeline's target."""

    def __init__(self, definition: PipelineDefinition, producer: str) -> None:
        self._definition, self._producer = definition, producer

    def outputs(
        self,
        beginning: Beginning | None,
        written: Mapping[str, TableWritten],
        *,
        overwritten: bool,
    ) -> list[ol.OutputDataset]:
        """Return the tables of the definition, or the archive; with columns once Spark has judged
        the definition, and with what was written as far as it is known."""
        layouts = {} if beginning is None else {e.definition.name: e for e in beginning.layouts}
        tables = self._definition.tables
        names = [ARCHIVE] if tables is None else [each.name for each in tables.tables]
        found = []
        for name in names:
            each = ol.OutputDataset(*self._named(name), facets=self._storage())
            assert each.facets is not None
            if fields := self._fields(layouts.get(name)):
                each.facets["schema"] = schema_dataset.SchemaDatasetFacet(
                    fields, producer=self._producer
                )
            if overwritten:
                each.facets |= self._lifecycle("OVERWRITE")
            if name in written:
                one = written[name]
                each.outputFacets = {
                    "outputStatistics": (
                        output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                            one.rows, one.byte_count, one.files, producer=self._producer
                        )
                    )
                }
            found.append(each)
        return found

    def dropped(self, name: str) -> ol.OutputDataset:
        """Return a table that is no longer there."""
        return ol.OutputDataset(*self._named(name), facets=self._lifecycle("DROP"))

    def _lifecycle(self, change: str) -> dict[str, Any]:
        facets = lifecycle_state_change_dataset
        return {
            "lifecycleStateChange": facets.LifecycleStateChangeDatasetFacet(
                facets.LifecycleStateChange[change], producer=self._producer
            )
        }

    def _storage(self) -> dict[str, Any]:
        definition = self._definition
        if definition.target_kind == "sqlite":
            return {}
        return {
            "storage": storage_dataset.StorageDatasetFacet(
                definition.target_kind, "parquet", producer=self._producer
            )
        }

    def _named(self, name: str) -> tuple[str, str]:
        """Return namespace and name: those of the directory of files, or of the bucket. SQLite has
        no rule of its own; its tables are named by database and table, as those of servers are."""
        definition = self._definition
        if definition.kind == "archive":
            return _named_archive(definition.archive_location)
        if definition.url is not None:
            return _in_bucket(f"{definition.url}/{name}")
        if definition.target_kind == "sqlite":
            return "sqlite", f"{definition.target.absolute()}.{name}"
        return _local(definition.target / name)

    def _fields(self, layout: Layout | None) -> list[schema_dataset.SchemaDatasetFacetFields]:
        if self._definition.kind == "archive":
            from waltz.spark.archive_files import SCHEMA

            columns = [(each.name, str(each.type)) for each in SCHEMA]
        elif layout is None:
            return []
        elif self._definition.target_kind == "sqlite":
            columns = [(each.name, each.type) for each in layout.columns]
        else:
            from waltz.spark.pipelines.bucket_join import BUCKET

            columns = [(each.name, _LAKE_TYPES[each.type]) for each in layout.columns]
            columns.append((BUCKET, "int"))
        return [
            schema_dataset.SchemaDatasetFacetFields(name, kind, ordinal_position=number)
            for number, (name, kind) in enumerate(columns, 1)
        ]


def _named_archive(location: ArchiveLocation) -> tuple[str, str]:
    if isinstance(location, Path):
        return _local(location)
    directory = location.directory
    return _in_bucket(location.root) if directory is None else _local(directory)


def _local(path: Path) -> tuple[str, str]:
    naming = LocalFileSystem(str(path.absolute()))
    return naming.get_namespace(), naming.get_name()


def _in_bucket(url: str) -> tuple[str, str]:
    bucket, _, key = url.removeprefix(OBJECT_STORE_SCHEME).partition("/")
    naming = S3(bucket, key)
    return naming.get_namespace(), naming.get_name()


def _reads_archive(definition: PipelineDefinition, beginning: Beginning) -> bool:
    """Return whether some of what the run reads is in the archive of the definition."""
    from waltz.spark.any_archive import open_archive

    if definition.archive is None:
        return False
    try:
        ends = open_archive(definition.archive).contents().next_ids()
    except (WaltzError, OSError):
        return False  # the run will say so itself
    marks = {} if beginning.is_reread else beginning.marks
    return any(end > marks.get(each, 0) for each, end in ends.items())
