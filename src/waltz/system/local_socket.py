"""Sockets of this machine next to ports: their names, their files, and who is behind one.

Owns where the socket of an address is, which directories and which processes are believed, and the
file of a socket from its making to its removal. Linux only: elsewhere no system call proves both
sides.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from waltz.errors import ConfigurationError, ConnectionFailedError
from waltz.types import Address

CAN_BE_PROVEN: Final = sys.platform == "linux"
"""Whether the system says who is on the other side of a socket."""

NOT_HERE: Final = (
    "sockets of this machine prove users on Linux only: take the directory of sockets out of the"
    " configuration, and use certificates or tokens"
)

PATH_BYTES_MAX: Final = 107
"""Bytes of the path of a socket: Linux has 108 in an address, the last one is 0."""

SOCKET_MODE: Final = 0o666
"""Every user may connect who can search the directory: the directory says who, the policy what."""

ROOT_UID: Final = 0

log = logging.getLogger(__name__)

_HOST: Final = re.compile(r"[A-Za-z0-9_.:%-]{1,253}")
_CREDENTIALS: Final = struct.Struct("iII")
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class Peer(NamedTuple):
    """The process on the other side, as it was when it connected, or began to listen."""

    pid: int
    uid: int


class Place(NamedTuple):
    """A directory: its owner, and its mode."""

    uid: int
    mode: int

    @property
    def is_open(self) -> bool:
        """Whether others than the owner may add files."""
        return bool(self.mode & _WRITABLE_BY_OTHERS)

    @property
    def is_free_for_all(self) -> bool:
        """Whether others than the owner may even replace files that are not theirs."""
        return self.is_open and not self.mode & stat.S_ISVTX


def socket_path(directory: str, address: Address) -> str | None:
    """Return the path of the socket of the process that others know by `address`; None: no socket
    can have that name, for the host is neither a name nor an IP address."""
    if not _HOST.fullmatch(address.host):
        return None
    return os.path.join(os.path.abspath(directory), f"{address.host}_{address.port}.sock")


def is_too_long(path: str) -> bool:
    """Whether the system takes no socket of this path."""
    return len(os.fsencode(path)) > PATH_BYTES_MAX


def trusted_uids(own: int, places: Sequence[Place], *, is_linked: bool) -> frozenset[int]:
    """Return the users whose processes may be behind a socket: root, this process's own, and the
    owner of the directory if nobody else can have made it.

    `places` are the directory and those above it, up to the root; `is_linked`: a symbolic link is
    on the way, so that these are not all that count.
    """
    directory, *above = places
    believed = {ROOT_UID, own, directory.uid}
    if is_linked or any(each.is_open or each.uid not in believed for each in above):
        believed = {ROOT_UID, own}
    return frozenset(believed)


def _place(path: str) -> Place:
    found = os.stat(path)
    return Place(found.st_uid, found.st_mode)


def peer_of(connected: socket.socket) -> Peer:
    """Return the process on the other side of a connected socket."""
    return peer_in(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))


def peer_in(credentials: bytes) -> Peer:
    """Return the process that the system's answer to SO_PEERCRED names."""
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return Peer(pid, uid)


def connected_to(directory: str, address: Address) -> socket.socket | None:
    """Return a socket that is connected to the process that others know by `address`; None: it has
    no socket in the directory, or does not listen there.

    Raises ConnectionFailedError: a socket of that name is there and cannot be used, or the process
    behind it is not one that may be.
    """
    path = socket_path(directory, address)
    if path is None or is_too_long(path):
        return None
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ConnectionFailedError(f"{path} is no socket; remove it")
        folder = Path(path).parent
        places = [_place(str(each)) for each in (folder, *folder.parents)]
        is_linked = os.path.realpath(folder) != str(folder)
        trusted = trusted_uids(os.geteuid(), places, is_linked=is_linked)
        if places[0].uid not in trusted or places[0].is_free_for_all:
            raise ConnectionFailedError(
                f"the directory {folder} of local sockets belongs to the user"
                f" {places[0].uid} and has the mode {stat.S_IMODE(places[0].mode):o}: others than"
                " the server's user may put sockets there; use a directory of the server's user"
                " below directories of root, without symbolic links"
            )
        return _connected(path, trusted)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as error:
        raise ConnectionFailedError(
            f"no connection by the socket {path}: {error.strerror or error}"
        ) from error


def _connected(path: str, trusted: frozenset[int]) -> socket.socket:
    """Return a socket connected to a process of one of these users. Raises OSError, and
    ConnectionFailedError: of another user."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)  # it is connected at once or not at all
        try:
            made.connect(path)
        except BlockingIOError as error:
            raise ConnectionFailedError(
                f"the process at the socket {path} has too many connections to accept"
            ) from error
        uid = peer_of(made).uid
        if uid not in trusted:
            raise ConnectionFailedError(
                f"the process at the socket {path} runs as the user {uid}, who is neither root, nor"
                " this process's user, nor the owner of a directory that nobody else can have"
                " made: it may pose as the server"
            )
    except BaseException:
        made.close()
        raise
    return made


def check_system() -> None:
    """Raise ConfigurationError: this system does not prove who is behind a socket."""
    if not CAN_BE_PROVEN:
        raise ConfigurationError(NOT_HERE)


def check_directory(directory: str) -> None:
    """Raise ConfigurationError: sockets cannot be in the directory, or others than root and this
    process's user could replace them."""
    check_system()
    try:
        found = os.stat(directory)
    except OSError as error:
        raise ConfigurationError(
            f"the directory {directory} of local sockets cannot be used: {error.strerror}"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigurationError(f"{directory}, named for local sockets, is no directory")
    place = Place(found.st_uid, found.st_mode)
    if place.uid not in (ROOT_UID, os.geteuid()) or place.is_free_for_all:
        raise ConfigurationError(
            f"the directory {directory} of local sockets belongs to the user {place.uid} and has"
            f" the mode {stat.S_IMODE(place.mode):o}, so that others could replace sockets in it:"
            " it must belong to root or to this process's user, and not be writable for its group"
            " or for others (chmod go-w)"
        )


class LocalSocket:
    """The socket of a process that listens, and its file; closing removes the file."""

    def __init__(self, path: str) -> None:
        """Make the file, in place of one that a process which has ended has left.

        Raises ConfigurationError: the directory cannot be used, the path is too long, or something
        is there that is not to be replaced.
        """
        check_directory(os.path.dirname(path))
        check_length(path)
        self.path = path
        _remove_stale(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.bind(path)
            os.chmod(path, SOCKET_MODE)
            self._file = _mark(path)
        except OSError as error:
            self.socket.close()
            raise ConfigurationError(
                f"no socket can be made at {path}: {error.strerror or error}"
            ) from error

    def remove(self) -> None:
        """Remove the file, unless another one is there by now. Idempotent."""
        try:
            if _mark(self.path) == self._file:
                os.unlink(self.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning(
                "local_socket_left path=%s error=%s: the next start replaces it",
                self.path,
                error.strerror,
            )


def _mark(path: str) -> tuple[int, int, int]:
    """Return what tells a file from all others of its path: numbers of files are used again."""
    found = os.lstat(path)
    return found.st_dev, found.st_ino, found.st_ctime_ns


def check_length(path: str) -> None:
    """Raise ConfigurationError: the system takes no socket of this path."""
    if is_too_long(path):
        raise ConfigurationError(
            f"the path {path} of a local socket has {len(os.fsencode(path))} bytes, and the system"
            f" takes at most {PATH_BYTES_MAX}; use a directory with a shorter path"
        )


def _remove_stale(path: str) -> None:
    """Remove a socket on which nobody listens. Raises ConfigurationError: something else is
    there."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be looked at: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigurationError(f"{path} is there and is no socket; remove it")
    if found.st_uid not in (ROOT_UID, os.geteuid()):
        raise ConfigurationError(
            f"the socket {path} belongs to the user {found.st_uid}, who is neither root nor this"
            " process's; find out why it is there, and remove it"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            pass
        except OSError as error:
            raise ConfigurationError(
                f"the socket {path} is in use, or cannot be asked: {error.strerror or error}"
            ) from error
        else:
            raise ConfigurationError(
                f"another process listens at the socket {path}; stop it, or choose another"
                " directory"
            )
    try:
        os.unlink(path)
    except OSError as error:
        raise ConfigurationError(
            f"the socket {path}, left by a process that has ended, cannot be removed:"
            f" {error.strerror}"
        ) from error
