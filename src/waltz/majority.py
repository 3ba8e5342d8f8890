"""The rule of the majority: how many replicas of a partition decide.

All code that counts replicas, from the store to the operator's commands, uses this rule.
Source: Waltz Server, "Quorum Checking in the Recovery Process".
"""

from __future__ import annotations


def majority(replica_count: int) -> int:
    """Return how many of `replica_count` replicas are more than half of them."""
    return replica_count // 2 + 1
