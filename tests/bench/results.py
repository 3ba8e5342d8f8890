"""Values for tests: a calibration and results of known figures."""

from __future__ import annotations

import numpy as np

from waltz.bench.calibration import Calibration
from waltz.bench.results import Result, Round, Samples
from waltz.bench.workload import Workload

CALIBRATION = Calibration(
    sync_seconds=0.001,
    pack_seconds=1e-6,
    sync_seconds_p99=0.002,
    sync_seconds_large=0.003,
    echo_seconds=0.00001,
    checksum_seconds=0.0004,
    python="CPython 3.11.7",
    call_seconds=2e-7,
)


def workload(verb: str = "submit", **values: object) -> Workload:
    return Workload(name=str(values.pop("name", "some")), verb=verb, **values)  # type: ignore[arg-type]


def samples(*milliseconds: float) -> Samples:
    return Samples(np.array([int(each * 1e6) for each in milliseconds], np.int64))


def result(*rounds: Round, verb: str = "submit", **values: object) -> Result:
    return Result(workload(verb, **values), CALIBRATION, rounds)


class Silent:
    """Shows nothing; remembers what was begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.sent = 0

    def begin(self, text: str) -> None:
        self.begun.append(text)

    def tick(self, transactions: int) -> None:
        self.sent = transactions
