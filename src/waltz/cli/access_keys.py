"""A process's settings of rights and audit, out of its configuration."""

from __future__ import annotations

from waltz.access.policy_watch_shell import AccessConfig
from waltz.audit.audit_file import AuditSettings
from waltz.configuration.access_settings import (
    AUDIT_FILE,
    AUDIT_FILE_SIZE,
    AUDIT_FILES,
    AUDIT_STRICT,
    BREAK_GLASS,
    FROM_COORDINATOR,
    POLICY,
    PRINCIPAL_FROM,
    TOKENS,
)
from waltz.configuration.settings import Settings
from waltz.system.token_file import TokenFile


def access_config(settings: Settings, *, has_authorities: bool = False) -> AccessConfig:
    """Return what the keys say; `has_authorities`: peers are asked for certificates. Raises
    ConfigurationError: the file of tokens cannot be used."""
    tokens = settings.get(TOKENS)
    return AccessConfig(
        name_sources=settings[PRINCIPAL_FROM],
        policy_path=policy_file(settings),
        follows_coordinator=settings.get(POLICY) == FROM_COORDINATOR,
        break_glass=settings.get(BREAK_GLASS) or (),
        audit=_audit_settings(settings),
        token_name=None if tokens is None else TokenFile(tokens).name_of,
        demands_identity=tokens is not None and has_authorities,
    )


def policy_file(settings: Settings) -> str | None:
    """Return the path of the policy's file; None: there is no policy, or the coordinator keeps
    it."""
    path = settings.get(POLICY)
    return None if path == FROM_COORDINATOR else path


def _audit_settings(settings: Settings) -> AuditSettings | None:
    """Return the settings; None: the process writes no audit log."""
    path = settings.get(AUDIT_FILE)
    if path is None:
        return None
    size = settings[AUDIT_FILE_SIZE] << 20
    return AuditSettings(path, settings[AUDIT_STRICT], size, settings[AUDIT_FILES])
