"""Authors of transactions as people and programs read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from waltz.operators.authors import Author
    from waltz.types import ClientId

UNKNOWN: Final = "unknown"
NAMELESS: Final = "without a name"


def author_name(client_id: ClientId, author: Author | None) -> str:
    """Return a client's name, and the number that stands in its request IDs."""
    name = UNKNOWN if author is None else author.name or NAMELESS
    return f"{name} (client {client_id})"


def author_values(author: Author | None) -> dict[str, Any] | None:
    """Return an author for programs; None where it is unknown."""
    if author is None:
        return None
    return {
        "client_id": author.client_id,
        "name": author.name or None,
        "instance": author.instance or None,
        "program": author.program or None,
        "principal": author.principal or None,
        "address": author.address or None,
        "source": author.source,
        "recorded": author.is_recorded,
    }
