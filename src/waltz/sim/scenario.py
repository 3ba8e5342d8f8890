"""Everything that is drawn of a run before it begins, as data.

Owns what a run consists of: its seed, its cluster, its clients, its faults. The rest, for example
how long each byte takes, is drawn from the seed during the run. A scenario that is written down and
read again is the same run, also after faults were taken out of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any, Final

from waltz.errors import ConfigurationError
from waltz.sim.applications.workloads import SPREAD, WORKLOADS, ClientPlan, draw_ways
from waltz.sim.faults.drawing import FaultStage
from waltz.sim.faults.kinds import Fault, Moment, as_data, from_data
from waltz.sim.faults.plans import PLANS
from waltz.sim.knobs import KNOBS, draw_knobs
from waltz.types import PartitionId
from waltz.wire.storage_protocol import REPAIRS_SINCE

OF_ONE_VERSION_SHARE: Final = 0.6
"""Share of the runs in which all processes speak the latest version."""

OLDER_SHARE: Final = 0.4
"""Share of the processes, in the other runs, that speak an older version at some time."""

VERSIONS: Final = ((4,), (3,), (4, 5), (3, 5), (5, 4))
"""Versions of a process's lives: always old, upgraded, or downgraded. Before version 2 a client
cannot ask for all kinds of locks."""

STORAGE_VERSIONS: Final = ((0,), (1,), (0, 3), (2, 3), (3, 2), (3, 0))
"""The same for the storage protocol."""


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """The size of a cluster, and the settings that differ from run to run."""

    partition_count: int
    storage_count: int
    server_count: int
    segment_bytes_threshold: int
    spare_count: int = 0
    """Storage nodes besides, which the cluster does not know at first."""

    @property
    def partition_ids(self) -> list[PartitionId]:
        return [PartitionId(number) for number in range(self.partition_count)]

    @property
    def storages(self) -> list[str]:
        return [f"storage-{number}" for number in range(self.storage_count)]

    @property
    def spares(self) -> list[str]:
        first = self.storage_count
        return [f"storage-{number}" for number in range(first, first + self.spare_count)]

    @property
    def servers(self) -> list[str]:
        return [f"server-{number}" for number in range(self.server_count)]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run."""

    seed: int
    workload: str
    plan: str
    """The names of the plans drawn from; the plan also decides how faults follow each other."""
    length: int
    """The run's length, as a multiple of an ordinary one."""
    shape: ClusterShape
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...]
    knobs: Mapping[str, float] = field(default_factory=dict)
    """Bounds that are not the usual ones, by their name in `waltz.limits`."""
    versions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By name of a process, the latest version of the client protocol that it speaks in its first
    life, its second, and so on; the last one stays. Other processes speak the latest version."""
    storage_versions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Like `versions`, for the storage protocol: servers and storage nodes."""

    @property
    def source(self) -> str:
        """Return the text from which everything else is drawn."""
        return f"{self.seed}/{self.workload}/{self.plan}/{self.length}"

    @property
    def client_names(self) -> list[str]:
        return [f"client-{number}" for number in range(len(self.clients))]

    @property
    def transactions(self) -> int:
        return sum(client.transactions for client in self.clients)

    def has(self, kind: type[Moment]) -> bool:
        """Whether the run has a fault of that kind."""
        return any(isinstance(fault, kind) for fault in self.faults)

    def to_json(self) -> str:
        """Return a text that `from_json` reads."""
        other = {
            "faults": as_data(self.faults),
            "knobs": dict(self.knobs),
            "versions": dict(self.versions),
            "storage_versions": dict(self.storage_versions),
        }
        return json.dumps(asdict(self) | other, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        """Return the scenario of a text. Raises ConfigurationError: it is not one of a scenario."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"not a scenario: {error}") from error
        if not isinstance(data, Mapping) or data.get("plan") not in PLANS:
            raise ConfigurationError(f"not a scenario: {text[:80]!r}")
        if unknown := [*{*data.get("knobs", ())} - {*KNOBS}]:
            raise ConfigurationError(f"not a scenario: there is no bound {unknown[0]}")
        try:
            values: dict[str, Any] = {
                **data,
                "shape": ClusterShape(**data["shape"]),
                "clients": tuple(ClientPlan(**client) for client in data["clients"]),
                "faults": from_data(data["faults"]),
                **{
                    key: {name: tuple(each) for name, each in data.get(key, {}).items()}
                    for key in ("versions", "storage_versions")
                },
            }
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ConfigurationError(f"not a scenario: {error}") from error


def draw_scenario(seed: int, workload: str, plan: str, *, length: int = 1) -> Scenario:
    """Draw a run; the draws of one part do not change those of the others."""
    source = f"{seed}/{workload}/{plan}/{length}"
    clients = WORKLOADS[workload](Random(f"{source}/clients"), length)
    is_spread = workload in SPREAD
    shape = draw_shape(
        Random(f"{source}/shape"),
        server_count_min=max(PLANS[plan].server_count_min, 1 + is_spread),
        partition_count_min=1 + is_spread,
        spare_count_max=PLANS[plan].spare_count_max,
    )
    names = tuple(f"client-{number}" for number in range(len(clients)))
    stage = FaultStage(
        shape.storages, shape.servers, names, length, shape.spares, shape.partition_count
    )
    faults = PLANS[plan].draw(Random(f"{source}/faults"), stage)
    knobs = draw_knobs(Random(f"{source}/knobs"))
    versions: dict[str, tuple[int, ...]] = {}
    if not PLANS[plan].latest_version_only:
        versions = draw_versions(Random(f"{source}/versions"), [*shape.servers, *names])
    if versions.keys().isdisjoint(shape.servers):  # older ones cannot be asked for the cluster
        found = draw_ways(Random(f"{source}/ways"), clients)
        clients = tuple(
            old if name in versions else new
            for name, old, new in zip(names, clients, found, strict=True)
        )
    # Before version 1 a node cannot tell what it has damaged, nor have it repaired.
    oldest = REPAIRS_SINCE if PLANS[plan].harms_disks else 0
    nodes = [*shape.storages, *shape.spares, *shape.servers]
    storage_versions = draw_versions(
        Random(f"{source}/storage versions"),
        nodes,
        [each for each in STORAGE_VERSIONS if min(each) >= oldest],
    )
    return Scenario(
        seed,
        workload,
        plan,
        length,
        shape,
        clients,
        tuple(faults),
        knobs,
        versions,
        storage_versions,
    )


def draw_versions(
    random: Random,
    names: Sequence[str],
    courses: Sequence[tuple[int, ...]] = VERSIONS,
) -> dict[str, tuple[int, ...]]:
    """Draw which processes speak an older version, and whether that changes with a restart; often
    none."""
    if random.random() < OF_ONE_VERSION_SHARE:
        return {}
    return {name: random.choice(courses) for name in names if random.random() < OLDER_SHARE}


def draw_shape(
    random: Random,
    *,
    server_count_min: int = 1,
    spare_count_max: int = 0,
    partition_count_min: int = 1,
) -> ClusterShape:
    return ClusterShape(
        partition_count=max(random.choice((1, 2, 2, 3)), partition_count_min),
        storage_count=random.choice((3, 3, 3, 3, 3, 5)),
        server_count=max(random.choice((1, 2, 2, 3)), server_count_min),
        segment_bytes_threshold=random.choice((2_000, 20_000, 1_000_000_000)),
        spare_count=random.randint(1, spare_count_max) if spare_count_max else 0,
    )
