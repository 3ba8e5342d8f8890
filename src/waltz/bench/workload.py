"""Workloads as data: the calls made to a cluster, their clients and their rate.

Owns the form of their file and the check of it. A file is a mapping from names to workloads; those
in `workloads.yaml` come with the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any, Final

import yaml

from waltz.errors import ConfigurationError
from waltz.limits import DATA_BYTES_MAX

READY_MADE: Final = Path(__file__).with_name("workloads.yaml")
WRITING: Final = ("append", "submit", "append_many")
READING: Final = ("feed", "read")
VERBS: Final = (*WRITING, *READING, "idle")
READ_LOCKS_SINCE: Final = 1
"""The first version of the client protocol that has them."""

LIKE: Final = "like"
FOR_EACH: Final = "for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One measurement; the fields are the keys of the file."""

    name: str
    verb: str
    """`append` waits for each; `submit` sends contexts one by one; `append_many` many per call;
    `feed` catches up with callbacks; `read` reads ranges; `idle` does nothing."""
    about: str = ""
    data_bytes: int = 128
    """Bytes of each transaction; the second half of the data compresses well."""
    partitions: int = 4
    """Partitions of the cluster that are used, from 0 on; a cluster that is started has this
    many."""
    clients: int = 1
    """Processes that write, or follow the feed."""
    window: int = 256
    """Transactions, or calls of `append_many`, that one client has outstanding."""
    batch: int = 1000
    """Transactions in a call of `append_many`."""
    rate: float | None = None
    """Transactions a second of all clients together; none: as fast as the window allows."""
    write_locks: int = 0
    read_locks: int = 0
    keys: int | None = None
    """Keys that the locks are drawn from; None: no two transactions meet."""
    skew: float = 0.0
    """Skew of the draw: a key's share is 1 / rank ** skew (Zipf); 0 is uniform."""
    consumers: int = 0
    """Clients, processes of their own, that write nothing and apply everything."""
    consumers_after_seconds: float = 0.0
    """Seconds at the start of a round during which the consumers are away; they have a backlog
    then."""
    bodies: bool = False
    """Whether data is read, not headers only: by consumers, `feed` and `read`."""
    prefetch: bool = True
    """Whether data that callbacks read is fetched many transactions at a time, or by one call
    each."""
    arrow: bool = False
    """Whether `read` ends in Arrow record batches."""
    prefill: int = 0
    """Transactions that are written first, for `feed` and `read`, over all partitions."""
    protocol: int | None = None
    """The latest version of the client protocol that clients offer; none: the latest there is."""
    duration_seconds: float = 10.0
    warm_up_seconds: float = 2.0
    rounds: int = 5
    tls: bool = False
    """Whether a cluster that is started speaks TLS."""
    slow_sync_seconds: float = 0.0
    """Added to each sync of one storage node of a cluster that is started."""

    def __post_init__(self) -> None:
        """Check the values. Raises ConfigurationError: one is out of range, or two exclude each
        other."""
        self._expect(self.verb in VERBS, f"verb is {self.verb!r}; expected one of {VERBS}")
        for name, low, high in (
            ("data_bytes", 0, DATA_BYTES_MAX),
            ("partitions", 1, 4096),
            ("clients", 1, 64),
            ("window", 1, 1_000_000),
            ("batch", 1, 100_000),
            ("write_locks", 0, 1000),
            ("read_locks", 0, 1000),
            ("skew", 0, 10),
            ("consumers", 0, 64),
            ("consumers_after_seconds", 0, 3600),
            ("duration_seconds", 0.1, 86_400),
            ("warm_up_seconds", 0, 3600),
            ("rounds", 1, 1000),
            ("slow_sync_seconds", 0, 60),
        ):
            value = getattr(self, name)
            self._expect(
                isinstance(value, int | float) and low <= value <= high,
                f"{name} is {value!r}; expected {low} to {high}",
            )
        self._expect_spoken()
        self._expect(
            self.rate is None or self.rate > 0, f"rate is {self.rate}; expected more than 0"
        )
        self._expect(
            self.keys is None or self.keys > 0, f"keys is {self.keys}; expected more than 0"
        )
        self._expect(
            self.verb != "submit" or self.window % self.partitions == 0,
            f"window is {self.window}; expected a multiple of the {self.partitions} partitions",
        )
        self._expect(
            self.verb != "append" or self.window == 1,
            f"window is {self.window}; expected 1, since append waits for each transaction",
        )
        self._expect(
            self.verb not in READING or self.prefill >= self.partitions,
            f"prefill is {self.prefill}; expected more than 0, since {self.verb} needs something"
            " to read",
        )

    def _expect_spoken(self) -> None:
        if self.protocol is None:
            return
        self._expect(
            isinstance(self.protocol, int) and self.protocol >= 0,
            f"protocol is {self.protocol!r}; expected a version of the client protocol",
        )
        self._expect(
            self.verb not in ("read", "idle"),
            f"{self.verb} has no protocol to choose; leave it out",
        )
        self._expect(
            self.protocol >= READ_LOCKS_SINCE or not self.read_locks,
            f"read_locks need protocol {READ_LOCKS_SINCE} or later",
        )

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise ConfigurationError(f"workload {self.name}: {otherwise}")

    @property
    def is_writing(self) -> bool:
        return self.verb in WRITING

    @property
    def client_options(self) -> dict[str, Any]:
        """Return the options with which all clients of the workload are opened."""
        return {} if self.protocol is None else {"protocol_version_max": self.protocol}

    def short(self, seconds: float, rounds: int) -> Workload:
        """Return the same with other times: the warm-up is at most a fifth of a round."""
        return replace(
            self,
            duration_seconds=seconds,
            warm_up_seconds=min(self.warm_up_seconds, seconds / 5),
            rounds=rounds,
        )


KEYS: Final = {field.name: field.type for field in fields(Workload)}


def read_workloads(path: Path = READY_MADE) -> dict[str, Workload]:
    """Return the workloads of a file by name, in its order.

    `like: NAME` copies the keys of an earlier one. `for: {key: [values]}` makes one per value, or
    combination of values, with the values in the name. Raises ConfigurationError.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict) or not content:
        raise ConfigurationError(f"{path}: expected names and their workloads")
    given: dict[str, dict[str, Any]] = {}
    found: dict[str, Workload] = {}
    for name, value in content.items():
        given[str(name)] = _expanded(str(name), value, given)
        for workload in _workloads(str(name), given[str(name)]):
            found[workload.name] = workload
    return found


def _expanded(name: str, value: Any, earlier: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"workload {name}: expected keys and values, found {value!r}")
    model = value.get(LIKE)
    if model is not None and model not in earlier:
        raise ConfigurationError(f"workload {name}: there is no workload {model!r} before this one")
    merged = {**earlier.get(str(model), {}), **value}
    merged.pop(LIKE, None)
    unknown = sorted(merged.keys() - KEYS.keys() - {FOR_EACH}) or (["name"] * ("name" in merged))
    if unknown:
        raise ConfigurationError(f"workload {name}: unknown key {unknown[0]!r}")
    if "verb" not in merged:
        raise ConfigurationError(f"workload {name}: no verb; expected one of {VERBS}")
    return merged


def _workloads(name: str, value: Mapping[str, Any]) -> Iterator[Workload]:
    plain = {key: each for key, each in value.items() if key != FOR_EACH}
    varied = value.get(FOR_EACH) or {}
    if not isinstance(varied, dict) or not all(isinstance(each, list) for each in varied.values()):
        raise ConfigurationError(f"workload {name}: expected {FOR_EACH} to be keys with lists")
    if unknown := sorted(varied.keys() - KEYS.keys()):
        raise ConfigurationError(f"workload {name}: unknown key {unknown[0]!r} in {FOR_EACH}")
    for values in product(*varied.values()):
        suffix = "".join(f"-{value}" for value in values)
        try:
            yield Workload(
                name=name + suffix, **{**plain, **dict(zip(varied, values, strict=True))}
            )
        except TypeError as error:
            raise ConfigurationError(f"workload {name}: {error}") from error


def choose(workloads: Mapping[str, Workload], patterns: Sequence[str]) -> list[Workload]:
    """Return those whose names match one of `patterns` (`original-*`), each once, in their order.

    Raises ConfigurationError: a pattern that matches none.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in workloads):
            raise ConfigurationError(
                f"no workload {pattern!r}; there are: {', '.join(workloads) or 'none'}"
            )
    return [
        workload
        for name, workload in workloads.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
