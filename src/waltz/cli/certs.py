"""`waltz certs init`, `issue`, `renew` and `show`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from waltz.cli.certificate_directory import (
    AUTHORITY,
    AUTHORITY_DAYS,
    CERTIFICATE_DAYS,
    CertificateDirectory,
)
from waltz.cli.output import json_option, new_table, print_json, print_table
from waltz.types import EVERYWHERE

if TYPE_CHECKING:
    from waltz.system.certificates import Described

DAYS_MAX: Final = 36500
"""Days of a validity; a hundred years."""

HOST_CHARACTERS_MAX: Final = 253
"""Characters of a host name, by RFC 1035."""

LABEL: Final = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST: Final = re.compile(rf"{LABEL}(\.{LABEL})*")
"""A name of one machine: without a wildcard, so that a key that is lost is one machine's."""

URI_CHARACTERS_MAX: Final = 2048
"""Characters of a SPIFFE ID, by its specification."""

URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://[!-~]+")
DOMAIN: Final = re.compile(r"[a-z0-9._-]{1,255}")
"""A trust domain, as SPIFFE has it."""

PREFIXES: Final = {"server": "server.ssl", "storage": "storage.ssl"}
"""Kinds of processes with a configuration, and the prefix of its keys."""

HOLDERS: Final = {"server": "the server", "storage": "the storage node"}


class HostType(click.ParamType):  # type: ignore[type-arg]
    """A name or an IP address by which peers connect."""

    name = "host"

    def convert(
        self, value: str, parameter: click.Parameter | None, context: click.Context | None
    ) -> str:
        try:
            address = ip_address(value)
        except ValueError:
            is_number = re.fullmatch(r"[0-9.]+", value)
            if is_number or not HOST.fullmatch(value) or len(value) > HOST_CHARACTERS_MAX:
                self.fail(
                    f"{value!r} is no IP address, and no name of one machine", parameter, context
                )
            return value.lower()
        if str(address) in EVERYWHERE or "%" in value:
            self.fail(f"{value!r} is not an address to connect to", parameter, context)
        return str(address)


def checked(pattern: re.Pattern[str], characters_max: int, form: str) -> Any:
    """Return a click callback that demands the form of a text."""

    def check(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        if value is None or (pattern.fullmatch(value) and len(value) <= characters_max):
            return value
        raise click.BadParameter(f"{value!r}; expected {form}", context, parameter)

    return check


def directory_option(command: Any) -> Any:
    return click.option(
        "--directory",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("waltz-certs"),
        show_default=True,
        help="Directory of the CA.",
    )(command)


def days_option(default: int | None, text: str) -> Callable[[Any], Any]:
    return click.option(
        "--days",
        type=click.IntRange(1, DAYS_MAX),
        default=default,
        show_default=default is not None,
        help=text,
    )


def now() -> datetime:
    return datetime.now(UTC)


@click.command()
@directory_option
@click.option(
    "--domain",
    default="waltz",
    show_default=True,
    callback=checked(DOMAIN, 255, "lower-case letters, digits, '.', '_' and '-'"),
    help="Trust domain: certificates are for spiffe://DOMAIN/...",
)
@days_option(AUTHORITY_DAYS, "Days that the CA is valid.")
@json_option
def init(directory: Path, domain: str, days: int, as_json: bool) -> None:
    """Make a CA in a new directory.

    With its key anybody can make a certificate that all processes of the cluster believe: keep the
    directory on a machine that is none of the cluster's, and give each process ca.pem and its own
    file.
    """
    certificates = CertificateDirectory(directory)
    certificates.create(domain, now=now(), days=days)
    found = certificates.described(AUTHORITY)
    if as_json:
        print_json({"authorities": str(certificates.authorities)} | facts(found))
        return
    click.echo(f"made a CA in {certificates.path}, valid until {found.not_after:%Y-%m-%d}")
    click.echo("  ca.pem      for every process: trustStore.location, --tls-ca")
    click.echo("  ca.key.pem  for nobody: with it certificates are made")
    click.echo("issue certificates with `waltz certs issue NAME --for storage --host HOST`")


@click.command()
@click.argument("name")
@click.option(
    "--for",
    "holder",
    type=click.Choice(["server", "storage", "client"]),
    required=True,
    help="The kind of process that shows it.",
)
@click.option(
    "--host",
    "hosts",
    type=HostType(),
    multiple=True,
    help="Name or IP address by which the cluster knows the process; may be repeated.",
)
@click.option(
    "--uri",
    callback=checked(URI, URI_CHARACTERS_MAX, "scheme://..., as in spiffe://domain/path"),
    help="URI that says who the holder is.  [default: spiffe://DOMAIN/KIND/NAME]",
)
@days_option(CERTIFICATE_DAYS, "Days that the certificate is valid.")
@directory_option
@json_option
def issue(
    name: str,
    holder: str,
    hosts: tuple[str, ...],
    uri: str | None,
    days: int,
    directory: Path,
    as_json: bool,
) -> None:
    """Issue a certificate, with a new key, into NAME.pem of the directory.

    A server and a storage node need a --host: peers check that they have reached a host of the
    certificate. A client connects only, and has none.
    """
    if holder == "client" and hosts:
        raise click.UsageError("--host: a client is not connected to, and its certificate has none")
    if holder != "client" and not hosts:
        raise click.UsageError(
            f"--host is missing: peers check that the certificate of {HOLDERS[holder]} is for the"
            " host that they connect to"
        )
    from waltz.system.certificates import Identity

    certificates = CertificateDirectory(directory)
    path = certificates.file_of(name)
    uri = uri or f"spiffe://{certificates.authority().domain}/{holder}/{name}"
    identity = Identity(name, tuple(dict.fromkeys(hosts)), uri, accepts=holder != "client")
    certificates.issue(identity, now=now(), days=days)
    found = certificates.described(name)
    settings = settings_of(holder, path, certificates.authorities)
    if as_json:
        print_json(
            {
                "certificate": str(path),
                "authorities": str(certificates.authorities),
                "settings": settings,
            }
            | facts(found)
        )
        return
    click.echo(f"wrote {path}: certificate and key, valid until {found.not_after:%Y-%m-%d}")
    click.echo(f"  for {', '.join((*found.uris, *found.hosts))}")
    click.echo(
        "in the environment of commands, or as --tls-ca and --tls-cert:"
        if holder == "client"
        else f"in the configuration of {HOLDERS[holder]}:"
    )
    equals = "=" if holder == "client" else ": "
    for key, value in settings.items():
        click.echo(f"  {key}{equals}{json.dumps(value, ensure_ascii=False)}")


@click.command()
@click.argument("name")
@days_option(None, f"Days.  [default: {CERTIFICATE_DAYS}; {AUTHORITY_DAYS} for the CA]")
@click.option("--new-key", is_flag=True, help="With a new key.")
@directory_option
@json_option
def renew(name: str, days: int | None, new_key: bool, directory: Path, as_json: bool) -> None:
    """Replace a certificate by one that is valid from now on, with the same key and content.

    NAME is that of a certificate, or `ca` for the CA's own: what it has issued stays valid. A new
    key for the CA is a new CA: make one in another directory, and have processes trust both.
    """
    certificates = CertificateDirectory(directory)
    if name == AUTHORITY:
        if new_key:
            raise click.UsageError(
                "--new-key: a CA with a new key is a new CA; make one in another --directory with"
                " `waltz certs init`, and put both ca.pem into every trustStore"
            )
        path = certificates.renew_authority(now=now(), days=days or AUTHORITY_DAYS)
    else:
        path = certificates.renew(name, now=now(), days=days or CERTIFICATE_DAYS, new_key=new_key)
    found = certificates.described(name)
    if as_json:
        print_json({"certificate": str(path)} | facts(found))
        return
    click.echo(f"renewed {path}: valid until {found.not_after:%Y-%m-%d}")
    click.echo("no process is restarted: one whose configuration names this file takes it within a")
    click.echo("second; where a copy is in use, replace the copy by renaming the new file over it")


@click.command()
@click.argument("name", required=False)
@directory_option
@json_option
def show(name: str | None, directory: Path, as_json: bool) -> None:
    """Show what the CA has issued, until when each is valid, and the CA itself.

    With NAME only that certificate.
    """
    certificates = CertificateDirectory(directory)
    names = [AUTHORITY, *certificates.names()] if name is None else [name]
    rows = [(each, certificates.described(each)) for each in names]
    states = {each: state_of(certificates, each, found, now()) for each, found in rows}
    if as_json:
        print_json([facts(found) | {"file": each, "state": states[each]} for each, found in rows])
        return
    table = new_table(
        "name", "valid until", "state", "used as", "URI", "hosts",
        left=("name", "state", "used as", "URI", "hosts"),
    )  # fmt: skip
    for each, found in rows:
        until = f"{found.not_after:%Y-%m-%d}"
        lists = (found.uses, found.uris, found.hosts)
        table.add_row(each, until, states[each], *(", ".join(words) for words in lists))
    print_table(table)


def state_of(
    certificates: CertificateDirectory, name: str, found: Described, moment: datetime
) -> str:
    if name != AUTHORITY and not certificates.is_own(name):
        return "of another CA"
    if moment > found.not_after:
        return "expired"
    if moment < found.not_before:
        return "not yet valid"
    if name != AUTHORITY and moment > certificates.described(AUTHORITY).not_after:
        return "its CA has expired"  # a CA may be renewed for less time than it had left
    return "valid"


def settings_of(holder: str, certificate: Path, authorities: Path) -> dict[str, str]:
    """Return the keys to set in the configuration of the holder; those of the environment for a
    client."""
    if holder == "client":
        return {"WALTZ_TLS_CERT": str(certificate), "WALTZ_TLS_CA": str(authorities)}
    prefix = PREFIXES[holder]
    return {
        f"{prefix}.keyStore.location": str(certificate),
        f"{prefix}.trustStore.location": str(authorities),
    }


def facts(found: Described) -> dict[str, Any]:
    return {
        "name": found.name,
        "hosts": list(found.hosts),
        "uris": list(found.uris),
        "used_as": list(found.uses),
        "serial": found.serial,
        "fingerprint_sha256": found.fingerprint,
        "not_before": found.not_before.isoformat(),
        "not_after": found.not_after.isoformat(),
    }
