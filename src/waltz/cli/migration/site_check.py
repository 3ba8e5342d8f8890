"""A cluster of the original looked at: its files, its directories, its processes, and the plan.

Owns the order in which things are looked at, and how the result is shown. Nothing is changed: files
are opened to read, and processes are asked what the tools of the original ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

from waltz.cli.cluster_list import ClusterMetadata, read_metadata
from waltz.cli.cluster_place import ClusterPlace
from waltz.cli.cluster_verify import gather_facts
from waltz.cli.doctor.certificate_checks import utc_now
from waltz.cli.doctor.finding import Checked, verdict
from waltz.cli.migration.cluster_checks import (
    Peers,
    metadata_findings,
    peer_findings,
    replica_findings,
)
from waltz.cli.migration.directory_checks import directory_findings
from waltz.cli.migration.file_checks import (
    ReadFile,
    against_cluster,
    file_differences,
    file_findings,
    named_place,
    place_findings,
    read_file,
)
from waltz.cli.migration.key_store_checks import named_stores, store_findings
from waltz.cli.migration.key_stores import write_owner_only
from waltz.cli.migration.original_files import ROLES, Role, convert
from waltz.cli.migration.original_names import ALWAYS, METRICS, TOOLS, Difference
from waltz.cli.migration.steps import Step, plan
from waltz.cli.output import progress_bar
from waltz.configuration.coordinator_settings import coordinator_address
from waltz.configuration.tls_settings import tls_settings
from waltz.errors import ConfigurationError, NoNodeError, UnavailableError, WaltzError
from waltz.host import Host
from waltz.operators.conversation_shell import conversation
from waltz.storage.directory.space import FREE_MINIMUM
from waltz.types import Address, PartitionId, TlsSettings
from waltz.wire.client_protocol import CLIENT_CODEC, CLIENT_GREETING

Ask: TypeAlias = Callable[[ReadFile], tuple[ClusterMetadata, Peers]]
START: Final = "is ZooKeeper up, and is the place right?"


@dataclass(slots=True)
class Checkup:
    """Everything that was found, and the plan that came of it."""

    findings: list[Checked] = field(default_factory=list)
    files: list[ReadFile] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    metadata: ClusterMetadata | None = None
    peers: Peers | None = None
    steps: tuple[Step, ...] = ()

    @property
    def is_well(self) -> bool | None:
        """Return False if something is in the way, else None if something is unknown, else True."""
        return verdict([*self.findings, *_readiness(self.steps)])

    def to_json(self) -> dict[str, object]:
        return {
            "findings": [each.to_json() for each in self.findings],
            "keys": [
                {"file": str(each.path), "key": one.name, "dropped": one.reason}
                for each in self.files
                for one in each.conversion.dropped
            ],
            "differences": [asdict(each) for each in self.differences],
            "plan": [each.to_json() for each in self.steps],
            "metrics": [asdict(each) for each in METRICS],
            "tools": [asdict(each) for each in TOOLS],
        }


def checkup(
    named: Sequence[tuple[Path, Role]],
    directories: Sequence[Path],
    ask: Ask | None,
    *,
    with_records: bool,
) -> Checkup:
    """Return everything that is found of files, directories and the cluster that the files name.

    ask  returns the cluster's metadata and what its processes say; None: nobody is asked.
    """
    found = Checkup()
    for path, role in named:
        _look_at_file(path, role, found)
    found.findings += place_findings(found.files)
    if ask is not None:
        _look_at_cluster(found, ask)
    for each in found.files:
        found.findings += against_cluster(each, found.metadata)
    _look_at_directories(found, directories, with_records=with_records)
    found.differences += ALWAYS
    found.steps = plan(found.metadata, found.peers, found.findings)
    return found


def _readiness(steps: Sequence[Step]) -> Iterator[Checked]:
    """Yield the steps as findings, so that one that is not ready decides the exit code, too."""
    for each in steps:
        if not each.is_done:
            why = "; ".join(each.why) or "ready"
            yield Checked("step", each.title, each.is_ready, why, why, "see the plan")


def _look_at_file(path: Path, role: Role, found: Checkup) -> None:
    tools = next((each for each in found.files if each.role is Role.TOOLS), None)
    read = read_file(path, role, {} if tools is None else tools.given)
    if isinstance(read, Checked):
        found.findings.append(read)
        return
    found.files.append(read)
    found.findings += file_findings(read)
    found.findings += store_findings(role, read.given, utc_now())
    found.differences += file_differences(read)


def _look_at_cluster(found: Checkup, ask: Ask) -> None:
    """Read the metadata and ask the processes, by the first file that names the place."""
    named = named_place(found.files)
    if named is None:
        return
    try:
        found.metadata, found.peers = ask(named)
    except NoNodeError:
        cause = "it answers, and has no cluster at this path"
        remedy = "correct cluster.root"
        found.findings.append(
            Checked("cluster", str(named.path), False, "no cluster", cause, remedy)
        )
        return
    except (WaltzError, OSError) as error:
        cause = str(error)
        found.findings.append(
            Checked("cluster", str(named.path), None, "cannot be asked", cause, START)
        )
        return
    subject = found.metadata.root
    found.findings.append(Checked("cluster", subject, True, f"cluster {found.metadata.name}"))
    found.findings += metadata_findings(found.metadata)
    found.findings += peer_findings(found.peers)
    found.findings += replica_findings(found.metadata, found.peers.facts)


def ask_cluster(named: ReadFile, seconds: float) -> tuple[ClusterMetadata, Peers]:
    """Return the metadata of the cluster that a file names, and what its processes say.

    Raises NoNodeError: there is no cluster. CoordinatorLostError. ConfigurationError: the file, or
    a store that it names, cannot be used.
    """
    with ExitStack() as stack:
        return _place(named, stack).run(lambda host, root: _ask(host, root, seconds))


def _place(named: ReadFile, stack: ExitStack) -> ClusterPlace:
    """Return the cluster; key stores become PEM files for the time of the check. Raises
    ConfigurationError."""
    pem_files = {}
    for store in named_stores(named.role, named.given):
        if not store.is_pem():
            private = Path(stack.enter_context(TemporaryDirectory(prefix="waltz-migrate-")))
            write_owner_only(private / store.pem_name, store.pem())
            pem_files[store.key] = str(private / store.pem_name)
    settings = convert(named.role, named.given, pem_files=pem_files, place={}).settings
    if settings is None:
        raise ConfigurationError(f"{named.path} has faults, which are named above")
    keys = ROLES[named.role].tls
    # A tool believes whom the file lets it believe; half of the keys is enough to connect.
    tls = (
        tls_settings(settings, keys, listens=True)
        if settings.is_set(keys.certificate)
        else TlsSettings()
    )
    return ClusterPlace(coordinator_address(settings), tls)


async def _ask(host: Host, root: str, seconds: float) -> tuple[ClusterMetadata, Peers]:
    metadata = await read_metadata(host, root)
    facts = await gather_facts(host, root, seconds)
    addresses = sorted({each.address for each in metadata.membership.descriptors.values()})
    versions = await asyncio.gather(*[_version(host, each, seconds) for each in addresses])
    return metadata, Peers(facts, dict(zip(addresses, versions, strict=True)))


async def _version(host: Host, address: Address, seconds: float) -> int | None:
    """Return the version that a server agrees on with somebody who speaks all of them."""
    try:
        async with conversation(
            host, address, CLIENT_CODEC, CLIENT_GREETING, seconds=seconds
        ) as talk:
            return talk.version
    except UnavailableError:
        return None


def _look_at_directories(found: Checkup, others: Sequence[Path], *, with_records: bool) -> None:
    named: dict[Path, tuple[PartitionId, ...]] = dict.fromkeys(others, ())
    for each in found.files:
        if (path := each.directory) is not None:
            named[path] = each.held_partitions(found.metadata)
    size = 0
    if with_records:
        size = sum(map(_size, (each for path in named for each in path.glob("*/*"))))
    with progress_bar("records", size) as progress:
        for path, held in named.items():
            minimum = next(
                (each.minimum for each in found.files if each.directory == path), FREE_MINIMUM
            )
            found.findings += directory_findings(
                path,
                found.metadata,
                held,
                minimum,
                with_records=with_records,
                progress=progress,
            )


def _size(path: Path) -> int:
    """Return the size of a file, 0 if there is none: the original may be running, and remove it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def shown(found: Checkup) -> Iterator[str]:
    """Yield everything, for people."""
    yield "FOUND"
    for finding in found.findings:
        yield from finding.lines()
    yield "\nKEYS THAT ARE DROPPED"
    for each in found.files:
        yield from (f"{each.path}: {one.name}: {one.reason}" for one in each.conversion.dropped)
    yield "\nWHAT WILL DIFFER"
    for difference in found.differences:
        yield f"{difference.subject}: there {difference.original}; here {difference.here}"
        yield f"        {difference.advice}"
    yield "\nTHE PLAN"
    for number, step in enumerate(found.steps):
        yield from step.lines(number)
    yield "\nMETRICS"
    for metric in METRICS:
        note = f"  ({metric.note})" if metric.note else ""
        yield f"{metric.original} -> {metric.here or 'none'}{note}"
    yield "\nTOOLS"
    for tool in TOOLS:
        note = f"  ({tool.options})" if tool.options else ""
        yield f"{tool.java_class} {tool.command} -> waltz {tool.here}{note}"
