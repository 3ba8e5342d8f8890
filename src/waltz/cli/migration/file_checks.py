"""A configuration file of the original judged: by itself, with the others, with the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from waltz.cli.cluster_list import ClusterMetadata
from waltz.cli.doctor.finding import Checked
from waltz.cli.migration.key_store_checks import named_stores
from waltz.cli.migration.original_files import (
    CLUSTER_KEY,
    PARTITION_COUNT,
    ROLES,
    Conversion,
    Role,
    convert,
    read_original,
)
from waltz.cli.migration.original_names import Difference
from waltz.configuration import server_settings, storage_settings
from waltz.configuration.coordinator_settings import (
    CLUSTER_ROOT,
    ZOOKEEPER_CONNECT,
    ZOOKEEPER_TIMEOUT,
)
from waltz.configuration.settings import Given
from waltz.errors import ConfigurationError
from waltz.storage.directory.space import FREE_MINIMUM, FreeMinimum
from waltz.types import Address, PartitionId, ReplicaId

SESSION_MILLISECONDS_ADVISED: Final = 10_000
"""Below this a pause of a machine ends sessions that need not end."""

CORRECT: Final = "correct the file; docs/operating has the keys"


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file of the original that could be read."""

    path: Path
    role: Role
    given: Mapping[str, Given]
    conversion: Conversion

    @property
    def directory(self) -> Path | None:
        """The storage directory that it names."""
        found = self.given.get(storage_settings.DIRECTORY.name)
        return None if self.role is not Role.STORAGE or found is None else Path(str(found.value))

    @property
    def minimum(self) -> FreeMinimum:
        settings = self.conversion.settings
        found = None if settings is None else settings.get(storage_settings.DISK_FREE_MIN)
        return found or FREE_MINIMUM

    def nodes(self, metadata: ClusterMetadata) -> list[ReplicaId]:
        """Return the storage nodes of the cluster that the file can be for: those with its port."""
        found = self.given.get(storage_settings.PORT.name)
        port = None if found is None else str(found.value)
        return [each for each in metadata.replicas() if port == str(Address.parse(each).port)]

    def held_partitions(self, metadata: ClusterMetadata | None) -> tuple[PartitionId, ...]:
        """Return the partitions of the file's node; none if it is not known which node it is."""
        nodes = [] if metadata is None else self.nodes(metadata)
        if metadata is None or len(nodes) != 1:
            return ()
        return tuple(metadata.placement.partitions[nodes[0]])


def read_file(path: Path, role: Role, place: Mapping[str, Given]) -> ReadFile | Checked:
    """Return the file, or why it cannot be read. `place`: keys of the tools' file."""
    try:
        given = read_original(path)
    except ConfigurationError as error:
        return Checked("file", str(path), False, "cannot be read", str(error), CORRECT)
    pem_files = {}
    for store in named_stores(role, given):
        try:
            if not store.is_pem():
                pem_files[store.key] = store.pem_name
        except ConfigurationError:
            pem_files[store.key] = store.pem_name  # the findings of stores have the reason
    return ReadFile(path, role, given, convert(role, given, pem_files=pem_files, place=place))


def file_findings(file: ReadFile) -> Iterator[Checked]:
    """Yield whether a process would take the converted file, and keys that nobody knows."""
    subject = str(file.path)
    for fault in file.conversion.faults:
        found = f"a {file.role} would refuse the converted file"
        yield Checked("configuration", subject, False, found, fault, CORRECT)
    for each in file.conversion.dropped:
        if not each.is_known:
            remedy = "correct the name, or take the key out"
            yield Checked("key", f"{subject}: {each.name}", False, "not known", each.reason, remedy)
    if not file.conversion.faults:
        kept, dropped = len(file.conversion.kept), len(file.conversion.dropped)
        yield Checked("configuration", subject, True, f"{kept} keys stay, {dropped} are dropped")


def file_differences(file: ReadFile) -> Iterator[Difference]:
    """Yield what will differ for this file."""
    subject = str(file.path)
    for name, reason in file.conversion.added.items():
        yield Difference(
            f"{subject}: {name}", "is not set", f"is {file.conversion.kept[name]}", reason
        )
    http = ROLES[file.role].http_port
    if http is not None and http.name not in file.given:
        yield Difference(
            f"{subject}: {http.name}",
            "without it there is no HTTP; metrics may go to Graphite or JMX",
            "without it there is no /health and no /metrics at all",
            "set it, and have Prometheus scrape it",
        )
    timeout = file.given.get(ZOOKEEPER_TIMEOUT.name)
    if (
        timeout is not None
        and isinstance(timeout.value, int)
        and timeout.value < SESSION_MILLISECONDS_ADVISED
    ):
        yield Difference(
            f"{subject}: {ZOOKEEPER_TIMEOUT.name}",
            f"{timeout.value} ms",
            "the same; the session ends when the process is stopped for as long",
            f"{SESSION_MILLISECONDS_ADVISED} ms or more, unless a dead server has to be noticed"
            " sooner",
        )


def named_place(files: Sequence[ReadFile]) -> ReadFile | None:
    """Return the first file that names a ZooKeeper; the tools' comes before all others."""
    return next((each for each in files if ZOOKEEPER_CONNECT.name in each.given), None)


def place_findings(files: Sequence[ReadFile]) -> Iterator[Checked]:
    """Yield files that name another place than the first one."""
    first = named_place(files)
    if first is None:
        return
    for each in files:
        for key in (ZOOKEEPER_CONNECT, CLUSTER_ROOT):
            there, here = first.given.get(key.name), each.given.get(key.name)
            if there is None or here is None or _same_place(there.value, here.value):
                continue
            cause = f"{key.name} is {here.value} there, and {there.value} in {first.path}"
            remedy = "name the files of one cluster"
            yield Checked("place", str(each.path), False, "another cluster", cause, remedy)


def _same_place(one: object, other: object) -> bool:
    """Whether two values name the same servers, in whichever order, and the same path."""
    return _parts(one) == _parts(other)


def _parts(value: object) -> tuple[list[str], str]:
    """Return the servers of a value, sorted, and the path after the last one of them."""
    servers, _, path = str(value).partition("/")
    return sorted(each.strip() for each in servers.split(",")), path.rstrip("/")


def against_cluster(file: ReadFile, metadata: ClusterMetadata | None) -> Iterator[Checked]:
    """Yield what the cluster contradicts of a file."""
    if metadata is None:
        return
    subject = str(file.path)
    if file.role is Role.SERVER and file.conversion.settings is not None:
        wanted = file.conversion.settings.get(server_settings.PREFERRED_PARTITIONS) or ()
        if beyond := [each for each in wanted if each >= metadata.partition_count]:
            cause = f"the cluster has the partitions 0 to {metadata.partition_count - 1}"
            found = f"{server_settings.PREFERRED_PARTITIONS.name} has {beyond}"
            yield Checked("preferred", subject, False, found, cause, "take them out")
    if file.role is not Role.STORAGE:
        return
    nodes = file.nodes(metadata)
    if not nodes:
        cause = f"the cluster's storage nodes are {', '.join(metadata.replicas()) or 'none'}"
        remedy = "correct storage.port, or add the node: waltz cluster add-storage"
        yield Checked("storage-node", subject, False, "not of the cluster", cause, remedy)
    yield from _told_by_older_releases(file, metadata)


def _told_by_older_releases(file: ReadFile, metadata: ClusterMetadata) -> Iterator[Checked]:
    key, count = file.given.get(CLUSTER_KEY), file.given.get(PARTITION_COUNT)
    if key is not None and not _is_key(key.value, metadata.cluster_key):
        cause = f"the key of cluster {metadata.name} is {metadata.cluster_key}"
        yield Checked(
            "cluster-key", str(file.path), False, str(key.value), cause, "name the right cluster"
        )
    if count is not None and str(count.value) != str(metadata.partition_count):
        cause = f"the cluster has {metadata.partition_count} partitions"
        found = f"{PARTITION_COUNT} is {count.value}"
        yield Checked("partitions", str(file.path), False, found, cause, "name the right cluster")


def _is_key(value: object, key: UUID) -> bool:
    try:
        return UUID(str(value)) == key
    except ValueError:
        return False
