"""`waltz migrate convert-config` and `convert-tls`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from waltz.cli.migration.key_store_checks import NamedStore, named_stores
from waltz.cli.migration.key_stores import write_owner_only
from waltz.cli.migration.original_files import (
    ROLES,
    Conversion,
    Role,
    convert,
    lines,
    read_original,
    role_of,
)
from waltz.cli.output import json_option, print_json
from waltz.errors import ConfigurationError

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
role_option = click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    help="The kind of process that FILE is for; by default its keys tell.",
)


@click.command("convert-config")
@click.argument("file", metavar="FILE", type=FILE)
@role_option
@click.option(
    "--tls",
    "tls_directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory into which convert-tls wrote the PEM files.",
)
@click.option(
    *("-c", "--cli-config-path"),
    "tools_file",
    type=FILE,
    help="The tools' file: its ZooKeeper is taken for a FILE that names none.",
)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="A new file; default: print."
)
def convert_config(
    file: Path,
    role: str | None,
    tls_directory: Path | None,
    tools_file: Path | None,
    output: Path | None,
) -> None:
    """Print a configuration file of Java Waltz as one of this program.

    Each key that is dropped stands in a comment with the reason; what is added says why. Ends with
    1, and says what is wrong, if the new file would be refused. A file that is written has mode
    0600: it may have passwords.
    """
    given = read_original(file)
    chosen = _role(file, role)
    pem_files = {}
    for store in named_stores(chosen, given):
        if store.is_pem():
            continue
        if tls_directory is None:
            raise ConfigurationError(
                f"{store.key} names {store.path}, which is no PEM: run waltz migrate convert-tls"
                f" {file} --to DIRECTORY first, and name that directory with --tls"
            )
        pem_files[store.key] = str(tls_directory.absolute() / store.pem_name)
    place = {} if tools_file is None else read_original(tools_file)
    found = convert(chosen, given, pem_files=pem_files, place=place)
    text = "".join(f"{line}\n" for line in lines(found, str(file)))
    if output is None:
        click.echo(text, nl=False)
    else:
        write_owner_only(output, text.encode())
    _tell(found, output)


def _role(file: Path, role: str | None) -> Role:
    """Raises ConfigurationError: nobody said the role, and the keys do not tell."""
    try:
        return role_of(read_original(file)) if role is None else Role(role)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error} with --role") from error


def _tell(found: Conversion, output: Path | None) -> None:
    """Say on standard error what became of the file; end with 1 if the new one is no good."""
    unknown = [each.name for each in found.dropped if not each.is_known]
    if output is not None:
        click.echo(
            f"wrote {output}: {len(found.kept)} keys, {len(found.dropped)} dropped", err=True
        )
    if unknown:
        click.echo(f"neither program knows {', '.join(unknown)}", err=True)
    for fault in found.faults:
        click.echo(f"the new file would be refused: {fault}", err=True)
    if found.faults:
        sys.exit(1)


@click.command("convert-tls")
@click.argument("file", metavar="FILE", type=FILE)
@role_option
@click.option(
    "--to",
    "directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the PEM files; made if it is not there.",
)
@json_option
def convert_tls(file: Path, role: str | None, directory: Path, as_json: bool) -> None:
    """Write the Java key stores that a file names as PEM files.

    FILE is a configuration file of Java Waltz, whose passwords open the stores. JKS and PKCS12 are
    read. The PEM files have mode 0600, and the private key in them is not encrypted; a file that is
    there already is not replaced.
    """
    given = read_original(file)
    chosen = _role(file, role)
    stores = [each for each in named_stores(chosen, given) if not each.is_pem()]
    if not stores:
        raise ConfigurationError(
            f"{file} names no key store below {ROLES[chosen].tls_prefix} that is not PEM already"
        )
    contents = [(store, store.pem()) for store in stores]
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make {directory}: {error.strerror}") from error
    written = [_write(store, content, directory) for store, content in contents]
    if as_json:
        print_json([{"key": store.key, "store": str(store.path), "pem": str(path)}
                    for (store, _), path in zip(contents, written, strict=True)])  # fmt: skip
        return
    for (store, _), path in zip(contents, written, strict=True):
        click.echo(f"{store.key}: {store.path} -> {path}")
    click.echo(f"next: waltz migrate convert-config {file} --tls {directory}")


def _write(store: NamedStore, content: bytes, directory: Path) -> Path:
    path = directory / store.pem_name
    write_owner_only(path, content)
    return path
