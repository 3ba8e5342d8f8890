"""Parts of states are kept once."""

from __future__ import annotations

from proofs.model.state import Budget, Parts


def test_equal_parts_have_one_number() -> None:
    parts: Parts[Budget] = Parts()
    numbers = [parts.number(Budget(cuts=cuts)) for cuts in (0, 1, 0, 1, 2)]
    assert numbers == [0, 1, 0, 1, 2]
    assert parts[1] == Budget(cuts=1)
    assert len(parts) == 3
