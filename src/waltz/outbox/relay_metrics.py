"""A relay's figures: what it has relayed and parked, what waits, and when it was last done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from waltz.figures import Metric, counter, gauge


@dataclass(frozen=True, slots=True)
class RelayFigures:
    """A relay at one moment. Counts are since its start.

    waiting                    rows in the outbox, counted up to a bound; None: not known.
    last_success_milliseconds  the time at which the outbox was last empty but for rows that parked
                               ones hold back; None: not since the start.
    """

    outbox: str
    cluster_key: str
    doing: str
    is_holder: bool
    relayed: int
    found: int
    parked: int
    vanished: int
    under_way: int
    waiting: int | None
    failures: int
    take_overs: int
    last_success_milliseconds: int | None
    trouble: str | None

    @property
    def is_healthy(self) -> bool:
        return self.trouble is None


RELAY_METRICS: Final[tuple[Metric[RelayFigures], ...]] = (
    gauge("healthy", "1 if nothing is wrong.", lambda each: float(each.is_healthy)),
    gauge(
        "holder",
        "1 if this relay holds the outbox; 0 if it stands by for another one, or begins.",
        lambda each: float(each.is_holder),
    ),
    counter(
        "rows", "Rows that are in the log and were taken out of the outbox.", lambda s: s.relayed
    ),
    counter(
        "found_rows",
        "Rows that an earlier relay had appended without taking them out of the outbox.",
        lambda each: each.found,
    ),
    counter("parked_rows", "Rows that were parked.", lambda each: each.parked),
    counter(
        "vanished_rows",
        "Claimed rows that others deleted from the outbox before they were appended.",
        lambda each: each.vanished,
    ),
    gauge(
        "under_way_rows",
        "Claimed rows that are not known to be in the log yet.",
        lambda each: each.under_way,
    ),
    gauge(
        "waiting_rows",
        "Rows in the outbox, those under way included; counted up to 10,000.",
        lambda each: each.waiting,
        absent="until this relay has counted them, and while it does not hold the outbox",
    ),
    counter("failures", "Failures after which everything was read again.", lambda s: s.failures),
    counter("take_overs", "Times that this relay has become the holder.", lambda s: s.take_overs),
    gauge(
        "last_success_timestamp_seconds",
        "The time, since 1970, at which the outbox last had no row that could be relayed.",
        lambda each: (
            None
            if each.last_success_milliseconds is None
            else each.last_success_milliseconds / 1000
        ),
        absent="until that happens for the first time",
    ),
)


def relay_json(figures: RelayFigures) -> dict[str, Any]:
    """Return the answer to `/health`."""
    return {
        "healthy": figures.is_healthy,
        "outbox": figures.outbox,
        "cluster_key": figures.cluster_key,
        "doing": figures.doing,
        "holder": figures.is_holder,
        "relayed": figures.relayed,
        "found": figures.found,
        "parked": figures.parked,
        "vanished": figures.vanished,
        "under_way": figures.under_way,
        "waiting": figures.waiting,
        "failures": figures.failures,
        "trouble": figures.trouble,
    }
