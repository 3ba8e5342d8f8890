"""Finds out what listens at an address where no ZooKeeper answers, for the text of the error."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

from waltz.errors import ConfigurationError
from waltz.recognition import FIRST_BYTES_MAX, ZOOKEEPER, recognized
from waltz.types import Address

QUESTION: Final = b"srvr\r\n\r\n"
"""A command that a ZooKeeper answers in words. The other ports of a cluster greet by themselves, or
answer a wrong greeting with what they are."""

PROBE_SECONDS_MAX: Final = 1.0


async def what_answers(connect_string: str) -> str | None:
    """Return what listens at these addresses instead of a ZooKeeper, and the remedy; None: it is
    unknown. Takes at most `PROBE_SECONDS_MAX`."""
    addresses = []
    for text in connect_string.partition("/")[0].split(","):
        with contextlib.suppress(ConfigurationError):
            addresses.append(Address.parse(text))
    found: Sequence[str | None] = await asyncio.gather(*map(found_at, addresses))
    wrong = [
        f"{each} answers at {address}"
        for address, each in zip(addresses, found, strict=True)
        if each not in (None, ZOOKEEPER)
    ]
    if not wrong:
        return None
    return f"{', '.join(wrong)}; expected {ZOOKEEPER}: give the address of {ZOOKEEPER}"


async def found_at(address: Address) -> str | None:
    """Return the kind of port that answers there, within `PROBE_SECONDS_MAX`; None: nothing
    answers, or it is unknown."""
    heard = b""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(QUESTION)
                while recognized(heard) is None and len(heard) < FIRST_BYTES_MAX:
                    data = await reader.read(FIRST_BYTES_MAX)
                    if not data:
                        break
                    heard += data
            finally:
                writer.close()
    return recognized(heard)
