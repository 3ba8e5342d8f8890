"""Checks of the addresses at which a configuration has a node listen: free, or held by whom."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from waltz.cli.doctor.finding import Checked
from waltz.system.port_probe import found_at
from waltz.types import ANY_HOST, Address

THIS_MACHINE: Final = "127.0.0.1"
"""The address to ask at what listens on every address."""

NO_SUCH_NAME: Final = -1
"""In place of the number of an error: the host name stands for no address."""


def port_finding(subject: str, expected: str, refusal: int | None, answers: str | None) -> Checked:
    """Judge a port that this process has tried to bind.

    `refusal` is the number of the error or NO_SUCH_NAME, None if it could be bound. `answers` is
    the kind of port that was found there if it is in use, None if that is not known.
    """
    if refusal is None:
        return Checked("port", subject, True, f"free for {expected}")
    if refusal == errno.EADDRINUSE:
        if answers == expected:
            return Checked("port", subject, True, f"{expected} answers: the node runs")
        remedy = "end that process, or choose another port"
        if answers is None:
            cause = f"a process holds it, and what answers is not recognized; {expected} is wanted"
            return Checked("port", subject, None, "in use", cause, f"unless it is meant: {remedy}")
        cause = f"{answers} answers there; {expected} is wanted"
        if answers.endswith("TLS"):
            return Checked("port", subject, None, "in use", cause, f"unless it is meant: {remedy}")
        return Checked("port", subject, False, "in use", cause, remedy)
    if refusal == NO_SUCH_NAME:
        cause = "the name service does not know the host name, or does not answer"
        remedy = "use an address of this machine, or correct the name"
        return Checked("port", subject, False, "no address", cause, remedy)
    causes = {
        errno.EADDRNOTAVAIL: ("no interface has the address", "use one of this machine"),
        errno.EACCES: ("this user may not listen there", "choose a port from 1024 on"),
    }
    cause, remedy = causes.get(refusal, ("the system refuses it", "choose another address"))
    return Checked("port", subject, False, os.strerror(refusal), cause, remedy)


def refusal_of(address: Address) -> int | None:
    """Return the number of the error with which the address cannot be listened on, or NO_SUCH_NAME;
    None: it can."""
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            listening.listen(1)
    except (socket.gaierror, UnicodeError):  # a label of a name is empty, or too long
        return NO_SUCH_NAME
    except OSError as error:
        return error.errno
    return None


async def check_port(name: str, address: Address, expected: str) -> Checked:
    """Try to listen at the address for a moment, and ask what listens if it is in use."""
    refusal = refusal_of(address)
    answers = None
    if refusal == errno.EADDRINUSE:
        host = THIS_MACHINE if address.host == ANY_HOST else address.host
        answers = await found_at(Address(host, address.port))
    return port_finding(f"{name} {address}", expected, refusal, answers)
