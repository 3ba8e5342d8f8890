"""Sockets of this machine: where they are, which are believed, and what is done about squatters."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_users import (
    NAMELESS_UID,
    OTHER_UID,
    acting_as,
    needs_other_users,
    socket_directory,
)
from waltz.errors import ConfigurationError, ConnectionFailedError
from waltz.system import local_socket
from waltz.system.local_socket import (
    PATH_BYTES_MAX,
    LocalSocket,
    Place,
    connected_to,
    is_too_long,
    socket_path,
    trusted_uids,
)
from waltz.system.tcp_network import RealNetwork
from waltz.types import Address, TlsSettings

HERE = Address("127.0.0.1", 7402)
NAME = "127.0.0.1_7402.sock"
OWN, ANN, BOB = 1000, 1001, 1002
CLOSED, STICKY, SHARED, ALL = 0o40755, 0o41777, 0o40775, 0o40777


@pytest.fixture
def directory() -> Iterator[Path]:
    with socket_directory() as found:
        yield found


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("db1.prod", "db1.prod_7402.sock"),
        ("::1", "::1_7402.sock"),
        ("fe80::1%eth0", "fe80::1%eth0_7402.sock"),
        ("..", ".._7402.sock"),
        ("../../run/docker", None),
        ("a\0b", None),
        ("", None),
        ("a b", None),
        ("x" * 254, None),
    ],
)
def test_an_address_names_a_socket_in_the_directory_and_nowhere_else(
    host: str, name: str | None
) -> None:
    found = socket_path("/run/waltz", Address(host, 7402))
    assert found == (None if name is None else f"/run/waltz/{name}")


def test_a_path_is_as_long_as_the_system_takes(directory: Path) -> None:
    room = PATH_BYTES_MAX - len(str(directory)) - 1
    fits, exceeds = (str(directory / ("x" * length)) for length in (room, room + 1))
    assert (is_too_long(fits), is_too_long(exceeds)) == (False, True)
    LocalSocket(fits).socket.close()
    with pytest.raises(ConfigurationError, match=r"108 bytes.*at most 107.*shorter path"):
        LocalSocket(exceeds)
    with socket.socket(socket.AF_UNIX) as asking, pytest.raises(OSError, match="too long"):
        asking.bind(exceeds)


@pytest.mark.parametrize(
    ("places", "is_linked", "trusted"),
    [
        # The owner of a directory below directories of root may serve in it.
        ([(ANN, CLOSED), (0, CLOSED), (0, CLOSED)], False, {0, OWN, ANN}),
        ([(ANN, CLOSED), (ANN, CLOSED), (0, CLOSED)], False, {0, OWN, ANN}),
        # Anybody may have made a directory in /tmp, or in a group's directory.
        ([(ANN, CLOSED), (0, STICKY), (0, CLOSED)], False, {0, OWN}),
        ([(ANN, CLOSED), (0, SHARED), (0, CLOSED)], False, {0, OWN}),
        ([(ANN, CLOSED), (0, CLOSED), (0, ALL)], False, {0, OWN}),
        # Bob may have put it there.
        ([(ANN, CLOSED), (BOB, CLOSED), (0, CLOSED)], False, {0, OWN}),
        # Nobody knows who made the link.
        ([(ANN, CLOSED), (0, CLOSED)], True, {0, OWN}),
        ([(0, STICKY), (0, CLOSED)], False, {0, OWN}),
    ],
)
def test_root_oneself_and_who_alone_can_have_made_the_directory_are_trusted(
    places: list[tuple[int, int]], is_linked: bool, trusted: set[int]
) -> None:
    assert trusted_uids(OWN, [Place(*each) for each in places], is_linked=is_linked) == trusted


def test_a_socket_is_for_every_user_and_its_file_ends_with_it(directory: Path) -> None:
    path = directory / NAME
    made = LocalSocket(str(path))
    assert stat.S_IMODE(path.lstat().st_mode) == 0o666
    made.remove()
    assert not path.exists()
    made.remove()
    path.write_text("somebody else's")
    made.remove()
    assert path.exists()
    made.socket.close()


def test_a_socket_that_nobody_listens_on_is_replaced_and_one_in_use_is_not(
    directory: Path,
) -> None:
    path = str(directory / NAME)
    left = LocalSocket(path)
    left.socket.close()  # as the death of its process
    living = LocalSocket(path)
    living.socket.listen()
    left.remove()
    assert Path(path).exists(), "the file is another one by now"
    with pytest.raises(ConfigurationError, match="another process listens"):
        LocalSocket(path)
    living.socket.close()
    living.remove()


@pytest.mark.parametrize("kind", ["file", "link", "dangling", "directory"])
def test_what_is_no_socket_is_neither_replaced_nor_connected_to(directory: Path, kind: str) -> None:
    path, other = directory / NAME, directory / "other.sock"
    aim = LocalSocket(str(other))
    aim.socket.listen()
    match kind:
        case "file":
            path.write_text("")
        case "link":
            path.symlink_to(other)
        case "dangling":
            path.symlink_to(directory / "nothing")
        case "directory":
            path.mkdir()
    with pytest.raises(ConfigurationError, match="is no socket; remove it"):
        LocalSocket(str(path))
    with pytest.raises(ConnectionFailedError, match="is no socket; remove it"):
        connected_to(str(directory), HERE)
    assert os.path.lexists(path)
    aim.socket.close()


def test_without_a_socket_or_a_listener_the_port_is_used(directory: Path) -> None:
    assert connected_to(str(directory / "nothing"), HERE) is None
    assert connected_to(str(directory), HERE) is None
    assert connected_to(str(directory), Address("../x", 1)) is None
    assert connected_to(str(directory / ("x" * 100)), HERE) is None
    left = LocalSocket(str(directory / NAME))
    left.socket.close()
    assert connected_to(str(directory), HERE) is None


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_in_which_others_replace_files_is_refused_on_both_sides(
    directory: Path, mode: int
) -> None:
    made = LocalSocket(str(directory / NAME))
    made.socket.listen()
    directory.chmod(mode)
    with pytest.raises(ConfigurationError, match=rf"mode {mode:o}.*chmod go-w"):
        LocalSocket(str(directory / "b.sock"))
    with pytest.raises(ConnectionFailedError, match=f"mode {mode:o}"):
        connected_to(str(directory), HERE)
    directory.chmod(0o1777)
    LocalSocket(str(directory / "b.sock")).socket.close()
    found = connected_to(str(directory), HERE)
    assert found is not None
    found.close()
    made.socket.close()


def test_a_directory_that_is_none_is_named(directory: Path) -> None:
    (directory / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be used: No such file"):
        LocalSocket(str(directory / "nothing" / NAME))
    with pytest.raises(ConfigurationError, match="is no directory"):
        LocalSocket(str(directory / "file" / NAME))


@needs_other_users
def test_another_user_s_directory_is_refused_by_servers(directory: Path) -> None:
    os.chown(directory, OTHER_UID, OTHER_UID)
    with pytest.raises(ConfigurationError, match=f"belongs to the user {OTHER_UID}"):
        LocalSocket(str(directory / NAME))


@needs_other_users
def test_who_squats_on_a_server_s_name_is_neither_replaced_nor_spoken_to() -> None:
    with socket_directory(0o1777) as directory, socket.socket(socket.AF_UNIX) as squatter:
        with acting_as(OTHER_UID):
            squatter.bind(str(directory / NAME))
            squatter.listen()
        with pytest.raises(ConfigurationError, match=f"belongs to the user {OTHER_UID}"):
            LocalSocket(str(directory / NAME))
        with pytest.raises(ConnectionFailedError, match=f"user {OTHER_UID}.*pose as the server"):
            connected_to(str(directory), HERE)
        there, _ = squatter.accept()
        with there:
            assert there.recv(1) == b"", "the client has said nothing"


@needs_other_users
def test_a_directory_that_an_attacker_made_makes_nobody_a_server() -> None:
    with socket_directory(0o1777) as shared, socket.socket(socket.AF_UNIX) as squatter:
        directory = shared / "waltz"
        with acting_as(OTHER_UID):
            directory.mkdir(mode=0o755)
            squatter.bind(str(directory / NAME))
            squatter.listen()
        with (
            acting_as(NAMELESS_UID),
            pytest.raises(ConnectionFailedError, match=f"belongs to the user {OTHER_UID}"),
        ):
            connected_to(str(directory), HERE)


@needs_other_users
def test_a_socket_that_may_not_be_reached_is_an_error_and_not_the_port(directory: Path) -> None:
    made = LocalSocket(str(directory / NAME))
    made.socket.listen()
    directory.chmod(0o700)
    with (
        acting_as(OTHER_UID),
        pytest.raises(ConnectionFailedError, match="Permission denied"),
    ):
        connected_to(str(directory), HERE)
    made.socket.close()


def test_a_listener_that_accepts_nobody_is_an_error_and_holds_nobody_up(directory: Path) -> None:
    made = LocalSocket(str(directory / NAME))
    made.socket.listen(0)
    waiting = connected_to(str(directory), HERE)
    assert waiting is not None
    with pytest.raises(ConnectionFailedError, match="too many connections to accept"):
        connected_to(str(directory), HERE)
    waiting.close()
    made.socket.close()


def test_other_systems_are_told_that_nobody_is_proven_there(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_socket, "CAN_BE_PROVEN", False)
    RealNetwork()
    with pytest.raises(ConfigurationError, match="on Linux only"):
        RealNetwork(local_paths={HERE: str(directory / NAME)})
    with pytest.raises(ConfigurationError, match="on Linux only"):
        RealNetwork(TlsSettings(local_sockets=str(directory)))
