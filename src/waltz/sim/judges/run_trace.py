"""The events of a run, in order, as values; and one digest of them all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 8


class RunTrace:
    """A list of events. Two runs of one seed must have equal digests."""

    def __init__(self) -> None:
        self._entries: list[tuple[object, ...]] = []
        self._comments: list[tuple[int, str]] = []

    def note(self, when: float, what: str, *facts: object) -> None:
        """Record that `what` happened at the virtual time `when`; `facts` must print the same in
        every run."""
        self._entries.append((when, what, *facts))

    def comment(self, when: float, text: str) -> None:
        """Add a line for people, which does not count in the digest."""
        self._comments.append((len(self._entries), f"{when:12.6f} # {text}"))

    def digest(self) -> str:
        """Sixteen hexadecimal digits over all entries."""
        return blake2b(repr(self._entries).encode(), digest_size=DIGEST_BYTES).hexdigest()

    def lines(self) -> Iterator[str]:
        """Yield all entries and comments, in the order in which they were made."""
        waiting = deque(self._comments)
        for position, (when, what, *facts) in enumerate(self._entries):
            while waiting and waiting[0][0] <= position:
                yield waiting.popleft()[1]
            yield f"{when:12.6f} {what} {' '.join(map(str, facts))}"
        yield from (comment for _, comment in waiting)
