"""How large a world is: who is in it, and what may go wrong how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INVARIANTS: Final = ("I1", "I2", "I3", "I4", "I5", "I9", "I10", "I11", "I14", "assertion")
LOST_HELPER_INVARIANTS: Final = tuple(each for each in INVARIANTS if each != "I10")
"""Where a replica that made a majority for a mark may lose its disk before the mark was told to
anybody: then the mark on a disk of a replica that is away may be undercut."""


@dataclass(frozen=True, slots=True)
class Scope:
    """How much may happen. Of faults and changes: how often in all."""

    starts_with: int = 0
    """With how many replicas the first session is open when it begins."""
    replicas: int = 3
    spares: int = 0
    """Replicas beyond those assigned at first."""
    servers: int = 2
    sessions: int = 3
    transaction_ids: int = 3
    appends: int = 3
    batch: int = 1
    """Records of one append to the replicas."""
    cuts: int = 1
    crashes: int = 0
    blanks: int = 0
    rollbacks: int = 0
    rolls_back_within_session: bool = False
    replacements: int = 0
    is_reduced: bool = True
    """Whether what follows at once from something else happens at once with it. That leaves nothing
    out, but with replacements a new replica that has not answered anything yet."""
    lost_writes: int = 0
    """Answers of the coordinator that are lost after it has done what it was asked."""
    set_backs: int = 0
    """Copies of the metadata that are put back later, between two servers."""

    def __post_init__(self) -> None:
        minority = (self.replicas - 1) // 2
        assert self.starts_with <= self.replicas
        assert self.blanks + self.rollbacks <= minority, "a majority must keep its disks"
        assert self.servers >= 1
        assert self.batch <= self.transaction_ids
