"""The results of a workload: figures per round, their medians, and multiples of the calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from waltz.bench.calibration import Calibration
from waltz.bench.workload import Workload

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


@dataclass(frozen=True, slots=True)
class Samples:
    """Durations in nanoseconds; with `counts`, each entry stands for that many transactions."""

    nanoseconds: NDArray[np.int64]
    counts: NDArray[np.int64] | None = None

    def quantiles(self, wanted: Sequence[float]) -> list[float]:
        """Return quantiles in seconds: measured values only, without interpolation."""
        assert len(self.nanoseconds), "no samples"
        if self.counts is None:
            values = np.quantile(self.nanoseconds, wanted, method="inverted_cdf")
            return [float(value) / 1e9 for value in values]
        order = np.argsort(self.nanoseconds, kind="stable")
        below = np.cumsum(self.counts[order])
        places = np.searchsorted(below, np.asarray(wanted) * below[-1], side="left")
        found = self.nanoseconds[order][np.minimum(places, len(order) - 1)]
        return [float(value) / 1e9 for value in found]

    def latency(self) -> dict[str, float]:
        """Return the percentiles that are printed, in seconds."""
        return dict(zip(QUANTILES, self.quantiles(list(QUANTILES.values())), strict=True))

    def __len__(self) -> int:
        return len(self.nanoseconds)


def joined(parts: Sequence[Samples]) -> Samples:
    """Return the samples of all parts, which all have counts or all have none."""
    counts = [part.counts for part in parts if part.counts is not None]
    assert len(counts) in (0, len(parts))
    return Samples(
        np.concatenate([part.nanoseconds for part in parts]),
        np.concatenate(counts) if counts else None,
    )


@dataclass(frozen=True, slots=True)
class Round:
    """One round. Rates are per second, latencies in seconds, processor time in seconds by role."""

    transactions: int
    seconds: float
    latency: Samples | None = None
    """From the intended time of each transaction to its application at the client that wrote it."""
    tail: Samples | None = None
    """From the intended time of each transaction to its application at the consumers."""
    lag: Samples | None = None
    """From the application of each transaction at the writer to that at the consumers; may be below
    zero."""
    from_commit: Samples | None = None
    """From the commit of each transaction at the server to its application at the consumers."""
    drain_seconds: float | None = None
    """From the start of the consumers until they had caught up."""
    refused: int = 0
    """Locks; each is tried again and is in the latency."""
    processor: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes of the largest process of each role; RSS, and PSS under `... (PSS)`."""

    @property
    def rate(self) -> float:
        return self.transactions / self.seconds


@dataclass(frozen=True, slots=True)
class Result:
    """The results of a workload."""

    workload: Workload
    calibration: Calibration
    rounds: tuple[Round, ...] = ()

    def samples(self) -> Samples | None:
        """Return the latencies of all rounds, at the consumers if there are any."""
        found = [each.tail or each.latency for each in self.rounds]
        kept = [each for each in found if each is not None]
        return joined(kept) if kept else None

    def rate(self) -> float:
        return float(np.median([each.rate for each in self.rounds]))

    def processor_seconds(self) -> dict[str, float]:
        """Return the processor time of one transaction by role, and of `all`; medians."""
        roles = dict.fromkeys(role for each in self.rounds for role in each.processor)
        found = {
            role: float(
                np.median([r.processor.get(role, 0.0) / r.transactions for r in self.rounds])
            )
            for role in roles
        }
        return found | {"all": sum(found.values())} if found else {}

    def latency(self, of: str = "latency") -> dict[str, float]:
        """Return the median over the rounds of each percentile; empty if nothing was timed."""
        rounds: list[dict[str, float]] = [
            samples.latency() for each in self.rounds if (samples := getattr(each, of)) is not None
        ]
        return (
            {name: float(np.median([each[name] for each in rounds])) for name in QUANTILES}
            if rounds
            else {}
        )

    def multiples(self) -> dict[str, float]:
        """Return the figures as multiples of what the machine did alone in the same run."""
        found: dict[str, float] = {}
        if self.workload.verb == "idle" or not self.rounds:
            return found
        yardstick = self.calibration
        found["transactions per write+sync"] = self.rate() * yardstick.sync_seconds
        if latency := self.latency("tail") or self.latency():
            found["p50 per write+sync"] = latency["p50"] / yardstick.sync_seconds
            found["p99 per write+sync"] = latency["p99"] / yardstick.sync_seconds
        if processor := self.processor_seconds():
            found["processor per pack+crc"] = processor["all"] / yardstick.pack_seconds
            found["processor per method call"] = processor["all"] / yardstick.call_seconds
        return found

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "workload": asdict(self.workload),
            "calibration": asdict(self.calibration),
        }
        value["memory"] = self.rounds[-1].memory
        if self.workload.verb == "idle":
            return value
        rates = [each.rate for each in self.rounds]
        drained = [each.drain_seconds for each in self.rounds if each.drain_seconds is not None]
        return value | {
            "rate": {"median": self.rate(), "min": min(rates), "max": max(rates)},
            "megabytes_per_second": self.rate() * self.workload.data_bytes / 1e6,
            "latency_seconds": self.latency(),
            "consumer_latency_seconds": self.latency("tail"),
            "consumer_lag_seconds": self.latency("lag"),
            "commit_to_apply_seconds": self.latency("from_commit"),
            "drain_seconds": float(np.median(drained)) if drained else None,
            "refused_locks": sum(each.refused for each in self.rounds),
            "processor_seconds_each": self.processor_seconds(),
            "multiples": self.multiples(),
            "rounds": [
                {"transactions": each.transactions, "seconds": each.seconds, "rate": each.rate}
                for each in self.rounds
            ],
        }

    def lines(self) -> list[str]:
        """Return the printed lines: the name and figures, then a line for each further figure."""
        head = f"{self.workload.name}:"
        if self.workload.verb == "idle":
            return [head, *_memory_lines(self.rounds[-1].memory)]
        rates = [each.rate for each in self.rounds]
        shown = f"{self.rate():,.0f}/s [{min(rates):,.0f}..{max(rates):,.0f}]"
        lines = [f"{head} {shown}, {self.rate() * self.workload.data_bytes / 1e6:.1f} MB/s"]
        for of, name in (
            ("latency", "latency"),
            ("tail", "latency at the consumers"),
            ("lag", "consumers behind the writer"),
            ("from_commit", "commit to apply at the consumers"),
        ):
            if latency := self.latency(of):
                shown = ", ".join(f"{key} {value * 1e3:.2f}" for key, value in latency.items())
                lines.append(f"  {name}, ms: {shown}")
        drained = [each.drain_seconds for each in self.rounds if each.drain_seconds is not None]
        if drained:
            lines.append(f"  backlog drained after {float(np.median(drained)):.2f} s")
        if refused := sum(each.refused for each in self.rounds):
            lines.append(f"  locks refused and tried again: {refused:,}")
        if processor := self.processor_seconds():
            shown = ", ".join(f"{role} {value * 1e6:.1f}" for role, value in processor.items())
            lines.append(f"  processor, us per transaction: {shown}")
        shown = ", ".join(f"{value:,.2f} {name}" for name, value in self.multiples().items())
        lines.append(f"  as multiples of this machine: {shown}")
        return lines + _memory_lines(self.rounds[-1].memory)


def _memory_lines(memory: dict[str, int]) -> list[str]:
    if not memory:
        return []
    shown = ", ".join(f"{role} {value / 2**20:.0f}" for role, value in memory.items())
    return [f"  memory of a process, MiB: {shown}"]
