"""A process's settings of rights and audit, out of its configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from waltz.access.policy_watch_shell import AccessConfig
from waltz.audit.audit_file import AuditSettings
from waltz.configuration.access_settings import (
    AUDIT_FILE,
    AUDIT_FILE_SIZE,
    AUDIT_FILES,
    AUDIT_STRICT,
    BREAK_GLASS,
    FROM_COORDINATOR,
    LOCAL_SOCKETS,
    POLICY,
    POLICY_DEMANDED,
    PRINCIPAL_FROM,
    TOKENS,
)
from waltz.configuration.settings import Settings
from waltz.errors import ConfigurationError
from waltz.system.token_file import TokenFile
from waltz.types import Address

log = logging.getLogger(__name__)


def access_config(settings: Settings, *, has_authorities: bool = False) -> AccessConfig:
    """Return what the keys say; `has_authorities`: peers are asked for certificates. Raises
    ConfigurationError: the file of tokens cannot be used, or a policy is demanded of nobody."""
    tokens = settings.get(TOKENS)
    follows = settings.get(POLICY) == FROM_COORDINATOR
    if settings[POLICY_DEMANDED] and not follows:
        raise ConfigurationError(
            f"{POLICY_DEMANDED.name} is for a process with {POLICY.name}: {FROM_COORDINATOR}; one"
            " with a file does not start without the file"
        )
    return AccessConfig(
        name_sources=settings[PRINCIPAL_FROM],
        policy_path=policy_file(settings),
        follows_coordinator=follows,
        break_glass=settings.get(BREAK_GLASS) or (),
        audit=_audit_settings(settings),
        token_name=None if tokens is None else TokenFile(tokens).name_of,
        demands_policy=settings[POLICY_DEMANDED],
        demands_identity=tokens is not None and has_authorities,
    )


def policy_file(settings: Settings) -> str | None:
    """Return the path of the policy's file; None: there is no policy, or the coordinator keeps
    it."""
    path = settings.get(POLICY)
    return None if path == FROM_COORDINATOR else path


def local_paths(settings: Settings, told: Mapping[Address, Address]) -> Mapping[Address, str]:
    """Return the sockets of this machine next to ports, by the addresses at which these listen;
    `told` has the addresses by which others know them.

    Raises ConfigurationError: the directory cannot be used, or an address gives no path of a
    socket.
    """
    directory = settings.get(LOCAL_SOCKETS)
    if directory is None:
        return {}
    from waltz.system.local_socket import check_directory, check_length, socket_path

    check_directory(directory)
    found = {}
    for bound, address in told.items():
        path = socket_path(directory, address)
        if path is None:
            raise ConfigurationError(
                f"{LOCAL_SOCKETS.name}: the host of {address}, by which others know this process,"
                " is no name of a host, so no socket can have its name; change the advertised"
                " address"
            )
        check_length(path)
        found[bound] = path
    return found


def tell_of_open_sockets(settings: Settings) -> None:
    """Warn of sockets at which every user of this machine may do everything."""
    directory = settings.get(LOCAL_SOCKETS)
    if directory is not None and not settings.is_set(POLICY):
        log.warning(
            "local_sockets_open_to_users directory=%s: without a policy every user of this machine"
            " who can search the directory may do everything; set %s, or the directory's mode",
            directory,
            POLICY.name,
        )


def _audit_settings(settings: Settings) -> AuditSettings | None:
    """Return the settings; None: the process writes no audit log."""
    path = settings.get(AUDIT_FILE)
    if path is None:
        return None
    size = settings[AUDIT_FILE_SIZE] << 20
    return AuditSettings(path, settings[AUDIT_STRICT], size, settings[AUDIT_FILES])
