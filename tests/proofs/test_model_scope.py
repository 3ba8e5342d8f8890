"""Scopes that ask for more than the protocol promises are refused."""

from __future__ import annotations

import pytest

from proofs.model.scope import Scope


def test_a_majority_keeps_its_disks() -> None:
    Scope(replicas=3, blanks=1)
    Scope(replicas=5, blanks=1, rollbacks=1)
    with pytest.raises(AssertionError, match="majority"):
        Scope(replicas=3, blanks=1, rollbacks=1)


def test_a_session_starts_with_replicas_that_are_there() -> None:
    with pytest.raises(AssertionError):
        Scope(replicas=3, starts_with=4)
