"""Keys of the configuration: name, kind of value, description.

Owns the kinds of values and their conversion from YAML or an option. Knows no key and no file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from waltz.errors import ConfigurationError
from waltz.types import (
    ZOOKEEPER_SCHEME,
    Address,
    CoordinatorAddress,
    ZooKeeperAcl,
    ZooKeeperAddress,
    parse_coordinator,
)

T = TypeVar("T")

PORT_MAX: Final = 65535


@dataclass(frozen=True, slots=True)
class ValueKind(Generic[T]):
    """A set of values; `convert` raises ValueError for what is not in it."""

    expectation: str
    convert: Callable[[object], T]
    show: Callable[[T], str] = str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Key(Generic[T]):
    """One setting.

    `option` is its name on the command line. `unused` says why this release does nothing with the
    key, which is then reported and ignored. `default_text` describes a default that depends on
    other keys. `guarded` is a prefix shared with other keys that all ask for safety: an unknown key
    with that prefix keeps a process from starting.
    """

    name: str
    kind: ValueKind[T]
    description: str
    default: T | None = None
    default_text: str = ""
    required: bool = False
    secret: bool = False
    option: str = ""
    unused: str = ""
    guarded: str = ""

    @property
    def shown_default(self) -> str:
        """The default as text; empty if there is none."""
        if self.default_text or self.default is None:
            return self.default_text
        return self.kind.show(self.default)


def whole_number(low: int, high: int, unit: str = "") -> ValueKind[int]:
    """Return the kind of whole numbers; digits in quotes are valid too, as for the original."""

    def convert(value: object) -> int:
        if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError
        return value

    return ValueKind(f"a whole number{_of(unit)} from {low} to {high}", convert)


def number(low: float, high: float, unit: str) -> ValueKind[float]:
    def convert(value: object) -> float:
        if isinstance(value, str):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        if math.isnan(value) or not low <= value <= high:
            raise ValueError
        return float(value)

    return ValueKind(
        f"a number{_of(unit)} from {low:.15g} to {high:.15g}", convert, "{:.15g}".format
    )


def port() -> ValueKind[int]:
    return whole_number(1, PORT_MAX)


def boolean() -> ValueKind[bool]:
    def convert(value: object) -> bool:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise ValueError
        return value

    return ValueKind("true or false", convert, lambda value: "true" if value else "false")


def text(expectation: str = "text") -> ValueKind[str]:
    def convert(value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise ValueError
        return value.strip()

    return ValueKind(f"{expectation}, not empty", convert)


def host_name() -> ValueKind[str]:
    def convert(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError
        name = value.strip()
        if name.startswith("[") and name.endswith("]"):
            name = name[1:-1]
        # A single colon separates a port; several are part of an IPv6 address.
        if not name or any(map(str.isspace, name)) or name.count(":") == 1:
            raise ValueError
        return name

    return ValueKind("a host name or IP address, without a port", convert)


def address() -> ValueKind[Address]:
    def convert(value: object) -> Address:
        if isinstance(value, Address):
            return value
        if not isinstance(value, str):
            raise ValueError
        try:
            return Address.parse(value.strip())
        except ConfigurationError as error:
            raise ValueError from error

    return ValueKind("an address host:port", convert)


def coordinator() -> ValueKind[CoordinatorAddress]:
    def convert(value: object) -> CoordinatorAddress:
        if isinstance(value, Address | ZooKeeperAddress):
            return value
        if not isinstance(value, str):
            raise ValueError
        try:
            return parse_coordinator(value.strip())
        except ConfigurationError as error:
            raise ValueError from error

    return ValueKind("an address host:port or zookeeper://host:port/root", convert)


def connect_string() -> ValueKind[ZooKeeperAddress]:
    """Return the kind of ZooKeeper's connect strings; a chroot becomes the start of the root."""
    prefix = f"{ZOOKEEPER_SCHEME}://"

    def convert(value: object) -> ZooKeeperAddress:
        if not isinstance(value, str):
            raise ValueError
        try:
            return ZooKeeperAddress.parse(prefix + value.strip())
        except ConfigurationError as error:
            raise ValueError from error

    return ValueKind(
        "host:port, or several with commas between, and a chroot if there is one",
        convert,
        lambda found: str(found).removeprefix(prefix),
    )


def acl() -> ValueKind[ZooKeeperAcl]:
    def convert(value: object) -> ZooKeeperAcl:
        return ZooKeeperAcl(value.strip().lower() if isinstance(value, str) else value)

    return ValueKind("open or creator", convert, lambda value: value.value)


def node_path() -> ValueKind[str]:
    def convert(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError
        first, *names = value.strip().split("/")
        if first or not names or any(not name.strip() or name in (".", "..") for name in names):
            raise ValueError
        return value.strip()

    return ValueKind("a path /name/name", convert)


def _of(unit: str) -> str:
    return f" of {unit}" if unit else ""
