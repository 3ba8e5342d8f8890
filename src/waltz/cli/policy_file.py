"""`waltz policy check`, `diff`, `who-can` and `test`: a policy file, without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from waltz.access.policy import VERBS, NumberRange, Policy, Verb, decide
from waltz.access.policy_comparison import (
    ALL_HEADERS,
    Change,
    changes,
    doubts,
    holders,
    quota_changes,
)
from waltz.access.policy_reading import read_policy
from waltz.access.policy_text import HEADER_MAX, HEADER_MIN
from waltz.access.quota import shown_limit
from waltz.cli.exit_codes import exit_code
from waltz.cli.output import json_option, print_json
from waltz.errors import ConfigurationError
from waltz.limits import PARTITIONS_MAX
from waltz.system.real_disk import RealDisk
from waltz.types import PartitionId


def _read(path: str) -> Policy:
    """Raises ConfigurationError: the file cannot be read, or has a fault."""
    return read_policy(RealDisk(), path)


@click.command()
@click.argument("file")
@json_option
def check(file: str, as_json: bool) -> None:
    """Read a policy file, and name the first fault with its line, or what may be a mistake.

    Ends with 1 if the file has a fault.
    """
    policy = _read(file)
    found = doubts(policy)
    if as_json:
        print_json(
            {
                "version": policy.version,
                "mode": policy.mode.value,
                "default": "allow" if policy.allows_by_default else "deny",
                "roles": len(policy.roles),
                "grants": len(policy.grants),
                "cases": len(policy.cases),
                "doubts": found,
            }
        )
        return
    for doubt in found:
        click.echo(f"doubtful: {doubt}")
    click.echo(
        f"{file}: version {policy.version}, mode {policy.mode.value}, {len(policy.roles)} roles,"
        f" {len(policy.grants)} grants; no fault"
    )


@click.command()
@click.argument("old")
@click.argument("new")
@json_option
def diff(old: str, new: str, as_json: bool) -> None:
    """Show what another policy would grant and take away: + is allowed by NEW only, - by OLD only;
    ~ is a quota, or the mode, that differs.

    Names of roles and the way in which ranges are cut do not count.
    """
    before, after = _read(old), _read(new)
    if as_json:
        print_json(changes_document(before, after))
        return
    show_changes(before, after)


def changes_document(before: Policy, after: Policy) -> list[dict[str, object]]:
    """Return a document per difference, as `--json` prints them."""
    limits = quota_changes(before, after)
    found = [*map(_as_json, changes(before, after)), *(each._asdict() for each in limits)]
    if before.mode is not after.mode:
        found.append({"mode_before": before.mode.value, "mode_after": after.mode.value})
    return found


def show_changes(before: Policy, after: Policy) -> None:
    """Print a line per difference."""
    found, limits = changes(before, after), quota_changes(before, after)
    if before.mode is not after.mode:
        click.echo(f"~ mode {before.mode.value} -> {after.mode.value}")
    for each in found:
        sign = "+" if each.is_gained else "-"
        click.echo(f"{sign} {each.principal} {each.verb.value}{_where(each)}")
    for principal, limit, *values in limits:
        old_limit, new_limit = (shown_limit(limit, each) for each in values)
        click.echo(f"~ {principal} {limit} {old_limit} -> {new_limit}")
    if not found and not limits and before.mode is after.mode:
        click.echo("both allow the same")


def _as_json(change: Change) -> dict[str, object]:
    return {
        "principal": change.principal,
        "verb": change.verb.value,
        "gained": change.is_gained,
        "partitions": [list(each) for each in change.partitions],
        "headers": [list(each) for each in change.headers],
    }


def _where(change: Change) -> str:
    """Return the partitions and headers of a change; nothing if these are all."""
    parts = []
    if not change.partitions:
        parts.append(" for no partition")
    elif change.partitions != (NumberRange(0, PARTITIONS_MAX - 1),):
        parts.append(f" partitions {_shown(change.partitions, PARTITIONS_MAX - 1)}")
    if change.headers and change.headers != (ALL_HEADERS,):
        parts.append(f" headers {_shown(change.headers, HEADER_MAX)}")
    return "".join(parts)


def _shown(ranges: Sequence[NumberRange], last: int) -> str:
    return ", ".join(f"{each.first}.." if each.last == last else str(each) for each in ranges)


@click.command("who-can")
@click.argument("verb", type=click.Choice(list(VERBS)))
@click.argument("file")
@click.option("--partition", "-p", type=click.IntRange(0, PARTITIONS_MAX - 1))
@click.option("--header", type=click.IntRange(HEADER_MIN, HEADER_MAX), help="Of an append.")
@json_option
def who_can(verb: str, file: str, partition: int | None, header: int | None, as_json: bool) -> None:
    """Show the principals that have a verb by a policy FILE, or patterns of them, and the reason.

    Without --partition: those who have it for some partition, or for what concerns none.
    """
    if header is not None and VERBS[verb] is not Verb.APPEND:
        raise click.UsageError("only appends have a --header")
    place = None if partition is None else PartitionId(partition)
    found = holders(_read(file), VERBS[verb], place, header)
    if as_json:
        print_json([each._asdict() for each in found])
        return
    for each in found:
        click.echo(f"{each.principal}: {each.reason}")
    if not found:
        click.echo("nobody")


@click.command("test")
@click.argument("file")
@json_option
def run_cases(file: str, as_json: bool) -> None:
    """Ask a policy the cases in its file, and show which answers are not as expected.

    Ends with 1 if there is one, or if there are no cases.
    """
    policy = _read(file)
    if not policy.cases:
        raise ConfigurationError(f"{file} has no cases; add cases: [{{principal: ..., ...}}]")
    wrong = []
    for case in policy.cases:
        decision = decide(policy, case.principal, case.verb, case.partition_id, case.header)
        if decision.is_allowed != case.is_allowed:
            wrong.append({"line": case.line, "reason": decision.reason})
    if as_json:
        print_json({"cases": len(policy.cases), "wrong": wrong})
    else:
        for each in wrong:
            click.echo(f"{file}, line {each['line']}: not as expected: {each['reason']}")
        click.echo(f"{len(policy.cases)} cases, {len(wrong)} not as expected")
    sys.exit(exit_code(not wrong))
