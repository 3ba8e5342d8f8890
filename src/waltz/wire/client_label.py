"""The label of a client: the name that it gives itself, in an extension of the handshake.

Owns the extension's bytes and the texts that a label may hold. A label is for people: it proves
nothing, and nothing is decided by it. What is not a label ends the handshake, as a wrong client
token does: our own clients check a label before they send it, and everything behind the handshake
may rely on texts that are short and printable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from waltz.errors import ConfigurationError, RemoteProtocolError
from waltz.wire.fields import BOOLEAN, TEXT, Reader, Structure

CLIENT_LABEL_EXTENSION: Final = "waltz.client"

LABEL_CHARACTERS_MAX: Final = 100
"""Characters of one text of a label."""

CONSUMER_CHARACTERS: Final = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
)
"""The characters of a consumer's name, which is that of a node in the coordinator, too."""

RELEASE: Final = "1.0.0"
"""The release of this library, as its label says it."""


class ClientLabel(NamedTuple):
    """`name` is what the client is for, `instance` which one of several it is; `program` and
    `version` are the program that runs it, and the release of its library.

    `is_consumer`: its marks are to be kept by the cluster, under its name.
    """

    name: str
    instance: str = ""
    program: str = ""
    version: str = RELEASE
    is_consumer: bool = False


LABEL: Final = Structure(
    "client label",
    ClientLabel,
    name=TEXT,
    instance=TEXT,
    program=TEXT,
    version=TEXT,
    is_consumer=BOOLEAN,
)


def trouble_of_name(name: str) -> str | None:
    """Return why `name` cannot be the name of a client; None if it can."""
    if not name or name != name.strip() or name in (".", "..") or "/" in name:
        return (
            f"the name {ascii(name)[:LABEL_CHARACTERS_MAX]}; expected a text without / and without"
            " blanks at its ends"
        )
    return _trouble_of("name", name)


def trouble_of(label: ClientLabel) -> str | None:
    """Return why these texts are no label; None if they are one."""
    if label.is_consumer and not set(label.name) <= CONSUMER_CHARACTERS:
        return (
            f"the name of a consumer is {ascii(label.name)[:LABEL_CHARACTERS_MAX]}; expected"
            " letters and digits of ASCII, and . _ -"
        )
    return (
        trouble_of_name(label.name)
        or _trouble_of("instance", label.instance)
        or _trouble_of("program", label.program)
        or _trouble_of("version", label.version)
    )


def _trouble_of(what: str, text: str) -> str | None:
    if len(text) > LABEL_CHARACTERS_MAX:
        return f"the {what} has {len(text)} characters; expected at most {LABEL_CHARACTERS_MAX}"
    if not text.isprintable():
        return f"the {what} is {text!a}; expected printable characters"
    return None


def check_label(label: ClientLabel) -> ClientLabel:
    """Return `label`. Raises ConfigurationError: it is none."""
    if (trouble := trouble_of(label)) is not None:
        raise ConfigurationError(f"a client cannot be called this: {trouble}")
    return label


def label_extension(label: ClientLabel) -> tuple[str, bytes]:
    """Return the extension of a handshake that says `label`, which was checked."""
    parts: list[bytes] = []
    LABEL.write(parts, label)
    return CLIENT_LABEL_EXTENSION, b"".join(parts)


def client_label(extensions: Iterable[tuple[str, bytes]]) -> ClientLabel | None:
    """Return the label among the extensions of a handshake; None if there is none. Raises
    RemoteProtocolError: it is not one."""
    data = dict(extensions).get(CLIENT_LABEL_EXTENSION)
    if data is None:
        return None
    reader = Reader(data)
    try:
        label = LABEL.read(reader)
        reader.expect_end()
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"client label: {error}") from None
    if (trouble := trouble_of(label)) is not None:
        raise RemoteProtocolError(f"client label: {trouble}")
    return label
