"""Waltz in a Django project: `INSTALLED_APPS = [..., "waltz.ext.django"]`.

    import waltz.ext.django as log

    transaction = log.client().append(0, b"...", timeout_seconds=5)
    log.give_token(request, {0: transaction})

Settings, all in one dictionary `WALTZ`: `CLUSTER`, the address; `CALLBACKS`, the dotted path of a
class or function that makes the callbacks of the client, by default one that applies nothing;
`MARKS`, the alias of the database with the marks that tokens are compared with; `OPTIONS`, the
client's options; `TOKEN_WAIT_SECONDS`. Nothing is opened until a process asks for its client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

try:
    import django  # noqa: F401
except ImportError as error:
    raise ImportError(
        "waltz.ext.django needs Django, which is not installed: pip install 'waltz-log[django]'"
    ) from error

if TYPE_CHECKING:
    from django.http import HttpRequest

    from waltz import WaltzClient

__all__ = ["client", "close", "give_token"]


def client() -> WaltzClient:
    """Return the client of this process; the first call opens it, also in a forked process, and one
    that follows the end of the client by itself opens another.

    Raises UnavailableError: the cluster does not answer, or is not there, which is tried again a
    second later at the earliest; ConfigurationError, and what the callbacks of the settings raise.
    """
    from waltz.ext.django.process_client import PROCESS

    return PROCESS.client()


def close() -> None:
    """Close the client of this process, in bounded time. Idempotent; the next call of `client`
    opens one. A process that exits need not call it."""
    from waltz.ext.django.process_client import PROCESS

    PROCESS.close()


def give_token(request: HttpRequest, transactions: Mapping[int, int]) -> None:
    """Have the response to `request` give a token of `transactions`, the ID of a transaction per
    partition, next to those that were given before. Needs `TokenMiddleware`.

    Raises as `WaltzClient.token`.
    """
    from waltz.client.token_middleware_shell import give_token as give

    give(request.META, client().token(transactions))
