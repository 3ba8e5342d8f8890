"""A log that another run is faster with: it goes on between two questions of the run that asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from waltz.spark.tasks import LogAccess

if TYPE_CHECKING:
    from waltz import LogReader


@dataclass(frozen=True)
class OvertakenAccess(LogAccess):
    """Lets each of `meanwhile` happen once, after the log was asked."""

    meanwhile: list[Callable[[], object]] = field(default_factory=list)

    @contextmanager
    def opened(self, cluster_key: UUID | None = None) -> Iterator[LogReader]:
        with LogAccess.opened(self, cluster_key) as log:
            yield log
        if self.meanwhile:
            self.meanwhile.pop(0)()
