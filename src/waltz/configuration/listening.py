"""The addresses to listen on: this machine only, unless told otherwise or peers have to prove who
they are.

Owns the keys for addresses that servers and storage nodes share, the rule, and the faults of
settings that contradict it. Reads no file and resolves no name.
"""

from __future__ import annotations

from typing import Final

from waltz.configuration.coordinator_settings import coordinator_hosts
from waltz.configuration.keys import Key, host_name, port
from waltz.configuration.settings import Settings
from waltz.configuration.tls_settings import TlsKeys
from waltz.types import ANY_HOST, EVERYWHERE, Address, Plain, is_local

LOOPBACK_HOST: Final = "127.0.0.1"


def bind_key(prefix: str, port_name: str) -> Key[str]:
    """Return the key `prefix`.bindAddress; `port_name` describes the ports."""
    return Key(
        name=f"{prefix}.bindAddress",
        kind=host_name(),
        default_text=f"{ANY_HOST} with {prefix}.ssl.trustStore.location, {LOOPBACK_HOST} without it"
        f" or with {prefix}.ssl.plain: always",
        option="--address",
        description=f"Address at which {port_name} listens: one of this machine, or {ANY_HOST}"
        " for all of them. By default no other machine reaches a port that does not"
        " authenticate peers.",
    )


def http_keys(prefix: str) -> tuple[Key[int], Key[str]]:
    """Return the keys of the HTTP port and of the address where it listens."""
    port_key = Key(
        name=f"{prefix}.jetty.port",
        kind=port(),
        default_text="none: no HTTP",
        option="--http-address",
        description="Port for HTTP, which serves /health, /live and /metrics.",
    )
    bind = Key(
        name=f"{prefix}.jetty.bindAddress",
        kind=host_name(),
        default_text=f"that of {prefix}.bindAddress",
        option="--http-address",
        description="Address at which the HTTP port listens. HTTP requests are not authenticated"
        " without `http.tokens` or `http.tls.trustStore.location`.",
    )
    return port_key, bind


def bound_address(
    settings: Settings, port_key: Key[int], bind: Key[str], host: str
) -> Address | None:
    """Return the address of a port that listens at `host` unless `bind` is set; None: the port is
    not set."""
    number = settings.get(port_key)
    return None if number is None else Address(settings.get(bind) or host, number)


def told_address(
    settings: Settings, advertised: Key[Address], bound: Address, machine_name: str
) -> Address:
    """Return the address told to others; `machine_name` is this machine's name for other
    machines."""
    if (given := settings.get(advertised)) is not None:
        return given
    return Address(machine_name, bound.port) if bound.host in EVERYWHERE else bound


def bound_host(settings: Settings, bind: Key[str], tls: TlsKeys) -> str:
    """Return the host name or IP address at which the process listens."""
    given = settings.get(bind)
    if given is not None:
        return given
    return LOOPBACK_HOST if _believes_everybody(settings, tls) else ANY_HOST


def is_narrowed(settings: Settings, bind: Key[str], tls: TlsKeys) -> bool:
    """Whether the process listens on loopback only because no address was set."""
    return not settings.is_set(bind) and _believes_everybody(settings, tls)


def narrowed_faults(
    settings: Settings, bind: Key[str], advertised: Key[Address], tls: TlsKeys
) -> list[str]:
    """Return the faults of a process that would listen on loopback only: its advertised address, or
    the coordinator's, shows that other machines must reach it."""
    if not is_narrowed(settings, bind, tls):
        return []
    faults = []
    told = settings.get(advertised)
    if told is not None and not is_local(told.host):
        faults.append(unreached(bind, tls, f"{advertised.name} tells others to connect to {told}"))
    elsewhere = [host for host in coordinator_hosts(settings) if not is_local(host)]
    if elsewhere:
        faults.append(
            unreached(bind, tls, f"the coordinator, at {', '.join(elsewhere)}, is not known by a"
                      " loopback address, so that others may be on other machines")
        )  # fmt: skip
    return faults


def unreached(bind: Key[str], tls: TlsKeys, why: str) -> str:
    """Return the text of the fault that a process on loopback cannot be reached, with the
    remedy."""
    return (
        f"{bind.name} is not set and peers are not authenticated, so this process would listen at"
        f" {LOOPBACK_HOST} only; but {why}. Set {bind.name} ({ANY_HOST}: all addresses of this"
        f" machine, as before; {LOOPBACK_HOST}: this machine only), or {tls.certificate.name} and"
        f" {tls.authorities.name}"
    )


def _believes_everybody(settings: Settings, tls: TlsKeys) -> bool:
    return not settings.is_set(tls.authorities) or settings.get(tls.plain) is Plain.ALWAYS
