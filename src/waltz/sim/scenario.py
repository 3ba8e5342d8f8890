"""All that is drawn of a run before it begins, as data.

Owns what a run is: its seed, its cluster, its clients, its faults. The rest, such as how long each
byte takes, is drawn from the seed while it goes on. A scenario that is written down and read again
is the same run, also when somebody has taken faults out of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from waltz.errors import ConfigurationError
from waltz.sim.drawing import Stage
from waltz.sim.faults import Fault, as_data, from_data
from waltz.sim.knobs import KNOBS, draw_knobs
from waltz.sim.plans import PLANS
from waltz.sim.workloads import WORKLOADS, ClientPlan
from waltz.types import PartitionId


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """How large a cluster is, and what of its settings differs from run to run."""

    partition_count: int
    storage_count: int
    server_count: int
    segment_bytes_threshold: int

    @property
    def partition_ids(self) -> list[PartitionId]:
        return [PartitionId(number) for number in range(self.partition_count)]

    @property
    def storages(self) -> list[str]:
        return [f"storage-{number}" for number in range(self.storage_count)]

    @property
    def servers(self) -> list[str]:
        return [f"server-{number}" for number in range(self.server_count)]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run."""

    seed: int
    workload: str
    plan: str
    """The names of what was drawn from; how faults follow each other is the plan's."""
    length: int
    """How many times as long as an ordinary run it is."""
    shape: ClusterShape
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...]
    knobs: Mapping[str, float] = field(default_factory=dict)
    """Bounds that are not the usual ones, by their name in `waltz.limits`."""

    @property
    def source(self) -> str:
        """What everything else is drawn from."""
        return f"{self.seed}/{self.workload}/{self.plan}/{self.length}"

    @property
    def client_names(self) -> list[str]:
        return [f"client-{number}" for number in range(len(self.clients))]

    @property
    def transactions(self) -> int:
        return sum(client.transactions for client in self.clients)

    def to_json(self) -> str:
        """One text that `from_json` reads."""
        other = {"faults": as_data(self.faults), "knobs": dict(self.knobs)}
        return json.dumps(asdict(self) | other, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        """Raises ConfigurationError: not the text of a scenario."""
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
            }
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ConfigurationError(f"not a scenario: {error}") from error


def draw_scenario(seed: int, workload: str, plan: str, *, length: int = 1) -> Scenario:
    """Draw a run; what one part draws does not change what the others do."""
    source = f"{seed}/{workload}/{plan}/{length}"
    clients = WORKLOADS[workload](Random(f"{source}/clients"), length)
    shape = draw_shape(Random(f"{source}/shape"), server_count_min=PLANS[plan].server_count_min)
    names = tuple(f"client-{number}" for number in range(len(clients)))
    stage = Stage(shape.storages, shape.servers, names, length)
    faults = PLANS[plan].draw(Random(f"{source}/faults"), stage)
    knobs = draw_knobs(Random(f"{source}/knobs"))
    return Scenario(seed, workload, plan, length, shape, clients, tuple(faults), knobs)


def draw_shape(random: Random, *, server_count_min: int) -> ClusterShape:
    return ClusterShape(
        partition_count=random.choice((1, 2, 2, 3)),
        storage_count=random.choice((3, 3, 3, 3, 3, 5)),
        server_count=max(random.choice((1, 2, 2, 3)), server_count_min),
        segment_bytes_threshold=random.choice((2_000, 20_000, 1_000_000_000)),
    )
