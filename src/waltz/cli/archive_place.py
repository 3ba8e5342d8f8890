"""The archive and the log that a command is for, from its file.

Owns how the file becomes a target and a log. Every command of `waltz archive` takes such a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from waltz.cli.command_settings import read_settings
from waltz.configuration.archive_settings import ARCHIVE_KEYS, TARGET, TLS, archive_settings
from waltz.configuration.coordinator_settings import coordinator_address
from waltz.configuration.settings import Settings
from waltz.configuration.tls_settings import tls_settings

if TYPE_CHECKING:
    from waltz.archive.archive_target import Target
    from waltz.archive.cluster_log import ClusterLog

FILE = click.argument("file", type=click.Path(dir_okay=False))


def read_file(path: str) -> Settings:
    """Return the settings of an archive; warnings go to standard error. Raises
    ConfigurationError."""
    settings = read_settings(path, {}, ARCHIVE_KEYS, archive_settings)
    for warning in settings.warnings:
        click.echo(f"warning: {warning}", err=True)
    return settings


def target_of(settings: Settings, *, create: bool = False) -> Target:
    """Return the place of the archive. Raises as `open_target`."""
    from waltz.archive.archive_target import open_target

    return open_target(settings[TARGET], create=create)


def open_log(settings: Settings) -> ClusterLog:
    """Connect to the log. Raises as `open_reader`."""
    import waltz
    from waltz.archive.cluster_log import ClusterLog

    cluster = coordinator_address(settings)
    tls = tls_settings(settings, TLS, listens=False)
    reader = waltz.open_reader(cluster, tls=tls)
    try:
        return ClusterLog(reader, waltz.open_replicas(cluster, tls=tls))
    except BaseException:
        reader.close()
        raise


@contextmanager
def opened_log(settings: Settings) -> Iterator[ClusterLog]:
    """Yield the log, and close its connections in the end."""
    log = open_log(settings)
    try:
        yield log
    finally:
        log.close()
