"""Peers that are gone without a word: the system probes them, and sent data is watched."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from typing import Final

PROBE_AFTER_SECONDS: Final = 20
"""A peer is probed after it has been silent for this long."""

PROBE_INTERVAL_SECONDS: Final = 10
"""The time between two probes of a silent peer."""

PROBES_MAX: Final = 4
"""After this many unanswered probes, about a minute, the peer's machine counts as gone. Until then
its client's newer connection may have to wait (hazard H5)."""

UNACKNOWLEDGED_SECONDS_MAX: Final = 30.0
"""A peer that acknowledges no sent data for this long counts as gone, too. No probes find it while
the system repeats that data, which it does for a quarter of an hour, up to two minutes apart."""

UNACKNOWLEDGED_LOOK_SECONDS: Final = 5.0
"""Interval at which connections are checked for unacknowledged data."""

PEER_CAN_BE_WATCHED: Final = sys.platform == "linux"
TCP_INFO: Final = struct.Struct("=3xB20xI92xQ")
"""Three fields of Linux: unanswered probes, unacknowledged segments, acknowledged bytes."""


def probe_when_silent(connected_socket: socket.socket) -> None:
    """Make the system notice a machine that is gone, which takes hours with its own defaults."""
    connected_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", PROBE_AFTER_SECONDS),
        ("TCP_KEEPINTVL", PROBE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", PROBES_MAX),
    ):
        if hasattr(socket, name):  # not every system lets one choose
            connected_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class PeerWatch:
    """Gives up a peer that leaves sent data unacknowledged for too long."""

    def __init__(self, transport: asyncio.Transport, give_up: Callable[[str], None]) -> None:
        self.timer: asyncio.TimerHandle | None = None
        """Runs while sent bytes may be unacknowledged."""
        self._transport = transport
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._acknowledged_bytes = 0
        self._looks_in_vain = 0

    def look_later(self) -> None:
        self.timer = self._loop.call_later(UNACKNOWLEDGED_LOOK_SECONDS, self._look)

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def _look(self) -> None:
        self.timer = None
        if self._transport.is_closing():
            return
        text = self._transport.get_extra_info("socket").getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size
        )
        probes, segments, acknowledged_bytes = TCP_INFO.unpack(text)
        # Packets of the peer that acknowledge nothing new do not count: those of this side may be
        # lost on the way. A peer whose receive window is full answers the probes of its window.
        is_silent = probes > 1 or (segments and acknowledged_bytes == self._acknowledged_bytes)
        self._looks_in_vain = self._looks_in_vain + 1 if is_silent else 0
        self._acknowledged_bytes = acknowledged_bytes
        if self._looks_in_vain >= UNACKNOWLEDGED_SECONDS_MAX / UNACKNOWLEDGED_LOOK_SECONDS:
            self._give_up(f"the peer has acknowledged nothing for {UNACKNOWLEDGED_SECONDS_MAX:g} s")
        elif segments or probes or self._transport.get_write_buffer_size():
            self.look_later()
