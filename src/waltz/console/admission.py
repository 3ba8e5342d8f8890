"""The requests that the console answers, and the headers of its answers.

Pages have no login unless there is a file of tokens: what protects them is that only this machine
reaches them. A page of another
site that has its name resolve to 127.0.0.1 would have the browser ask on its behalf; its requests
carry its own name as the host, and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

from waltz.types import Address, is_local

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every answer: nothing is loaded from elsewhere, nothing runs that is not a file of
ours, and no other site may show or read a page."""

HOST_CHARACTERS_MAX: Final = 255

OPEN_TO_ALL: Final = (
    "the console has no login: every machine that reaches {address} could read the whole log."
    " Serve it on 127.0.0.1 and reach it through ssh -L {port}:127.0.0.1:{port}, or give"
    " --http-tokens and --http-tls-cert, or --any-address if the network is closed to everybody"
    " else"
)


def refusal(
    method: str, headers: Mapping[str, str], served_at: str | None
) -> tuple[int, str] | None:
    """Return status and text if the request is refused. `headers` have lower-case names;
    `served_at` is the host of --http; None: any name will do, for a browser compares it with the
    console's certificate."""
    if method not in ("GET", "HEAD"):
        return 405, "The console is read-only: it answers GET and HEAD."
    if served_at is not None and not is_known_host(headers.get("host", ""), served_at):
        return 421, (
            "The console is asked by another name than its own. Open it by its IP address, or as"
            " localhost."
        )
    if (
        headers.get("sec-fetch-site") == "cross-site"
        and headers.get("sec-fetch-mode") != "navigate"
    ):
        return 403, "Another site asks for this page."
    return None


def is_known_host(host: str, served_at: str) -> bool:
    """Return whether a request's Host header is an IP address, localhost, or the host of --http: a
    name that somebody else may have resolve to this machine is none of them."""
    if len(host) > HOST_CHARACTERS_MAX:
        return False
    name = host.partition("]")[0].removeprefix("[") if host[:1] == "[" else host.partition(":")[0]
    if name.lower() in ("localhost", served_at.lower()):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not is_local(served_at)


def refused_address(address: Address, *, is_wanted: bool) -> str | None:
    """Return why the console does not listen at `address`; None: it does."""
    if is_wanted or is_local(address.host):
        return None
    return OPEN_TO_ALL.format(address=address, port=address.port)
