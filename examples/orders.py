"""Draws orders for `bank.py`: a few accounts of two branches, which everybody wants.

python examples/orders.py 1000 [SEED] | python examples/bank.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random


def draw(random: Random, count: int) -> Iterator[str]:
    for _ in range(count):
        branch, (one, other) = random.choice((0, 100)), random.sample(range(3), 2)
        verb = random.choice(("deposit", "withdraw", "withdraw", "transfer"))  # often too much
        target = f" {branch + other}" if verb == "transfer" else ""
        yield f"{verb} {branch + one}{target} {random.randint(1, 100)}"


if __name__ == "__main__":
    for order in draw(Random(*sys.argv[2:]), int(sys.argv[1])):
        print(order)
