"""Policy files, and the faults in them."""

from __future__ import annotations

import pytest

from waltz.access.policy import Case, Mode, NumberRange, Verb, audited
from waltz.access.policy_text import POLICY_BYTES_MAX, STAR_GRANTS_MAX, parse_policy
from waltz.access.quota import NO_QUOTA, Quota, shown_limit
from waltz.errors import ConfigurationError

GOOD = """\
version: 3
mode: observe
default: deny
roles:
  orders:
    verbs: [append, read]
    partitions: [0-3, 9]
    headers: -5..5
  on: {verbs: [status]}
grants:
  CN=a: [orders, on]
cases:
  - {principal: CN=a, verb: append, partition: 1, header: -5, expect: allow}
  - {principal: anonymous, verb: admin, expect: deny}
"""


def test_a_policy_is_read() -> None:
    policy = parse_policy(GOOD.encode(), "p.yaml")
    orders, plain = policy.roles
    assert (policy.version, policy.mode, policy.allows_by_default) == (3, Mode.OBSERVE, False)
    assert orders.verbs == {Verb.APPEND, Verb.READ, Verb.CONNECT}
    assert orders.partitions == (NumberRange(0, 3), NumberRange(9, 9))
    assert orders.headers == (NumberRange(-5, 5),)
    assert (plain.name, plain.partitions) == ("on", None)
    assert policy.cases == (
        Case("CN=a", Verb.APPEND, 1, -5, True, 13),  # type: ignore[arg-type]
        Case("anonymous", Verb.ADMIN, None, None, False, 14),
    )


FAULTS = [
    ("", "", "is empty; expected version"),
    ("version: 3\n", "", "line 1: the policy has no version; add version: ..."),
    ("mode: observe", "mode: warn", "line 2: unknown mode 'warn'; expected observe, deny"),
    (
        "mode: observe",
        "mod: observe",
        "line 2: unknown key of the policy: 'mod'; did you",
    ),
    ("default: deny", "default: denied", "line 3: unknown default 'denied'; did you mean deny"),
    ("version: 3", "version: 0", "line 1: version is '0'; expected a whole number from 1"),
    ("version: 3", "version: [3]", "line 1: version: a list; expected one value"),
    ("version: 3", "version: 3\nversion: 4", "line 2: the policy: key 'version' occurs twice"),
    ("[append, read]", "[append, reading]", "line 6: unknown verb 'reading'; did you mean read"),
    ("[append, read]", "[append, append]", "line 6: verbs of role orders: 'append' occurs twice"),
    ("[append, read]", "[]", "line 6: verbs of role orders: an empty list"),
    ("[append, read]", "append", "line 6: verbs of role orders: a single value; expected a list"),
    ("    partitions: [0-3, 9]\n", "", "line 5: role orders has append and read but no partitions"),
    ("[0-3, 9]", "[0-3, 3]", "line 7: partitions of role orders: 0..3 and 3 overlap"),
    ("[0-3, 9]", "3-0", "line 7: partitions of role orders: '3-0'; expected numbers from 0"),
    ("[0-3, 9]", "0-1000000", "line 7: partitions of role orders: '0-1000000'"),
    ("-5..5", "-5..2147483648", "line 8: headers of role orders"),
    ("{verbs: [status]}", "{verbs: [status], headers: 1}", "line 9: role on has headers but not"),
    (
        "{verbs: [status]}",
        "{verbs: [status], quotas: 1}",
        "line 9: unknown key of role on: 'quotas'",
    ),
    ("{verbs: [status]}", "{verbs: [status], audit: read}", "line 9: audit of role on: a single"),
    ("{verbs: [status]}", "{verbs: [status], audit: [cut]}", "line 9: unknown verb of audit 'cut'"),
    ("{verbs: [status]}", "", "line 9: role on: no value; expected keys and values"),
    ("{verbs: [status]}", "{}", "line 9: role on: nothing in it"),
    ("  on: {", "  'o n': {", "line 9: 'o n' is no name of a role"),
    ("[orders, on]", "[orders, off]", "line 11: unknown role 'off'"),
    ("[orders, on]", "[]", "line 11: the grant to CN=a: an empty list"),
    ("[orders, on]", "", "line 11: the grant to CN=a: no value; expected a list"),
    ("  CN=a: [", "  CN=a: [on]\n  CN=a: [", "line 12: grants: key 'CN=a' occurs twice"),
    ("  CN=a: [", "  spark: [", "line 11: 'spark' names no principal; expected scheme://"),
    ("roles:", "break_glass: ['*']\nroles:", "line 4: '*' names no principal"),
    ("CN=a, verb", "a, verb", "line 13: 'a' names no principal"),
    ("verb: admin, ", "", "line 14: a case has no verb"),
    ("partition: 1", "partition: x", "line 13: partition is 'x'"),
    ("[orders, on]", "*a", "line 11: an alias (*name) is not allowed"),
    ("[orders, on]", "[orders, on", "line 12: "),
    ("mode: observe", "mode: \x01", "is not YAML"),
]


QUOTA_FAULTS = [
    ("1", "quota of role on: a single value; expected keys and values"),
    ("{}", "quota of role on: nothing in it"),
    ("{appends: 5/s, appends: 6/s}", "quota of role on: key 'appends' occurs twice"),
    ("{append: 5/s}", "unknown key of quota of role on: 'append'; did you mean appends"),
    ("{appends: 5}", "appends of the quota of role on is '5'; expected from 1/s to 1000000000/s"),
    ("{appends: 0/s}", "is '0/s'; expected from 1/s to 1000000000/s, as 5000/s"),
    ("{appends: 5k/s}", "is '5k/s'"),
    ("{appends: 5MiB/s}", "is '5MiB/s'"),
    ("{append_bytes: 5/s}", "is '5/s'; expected from 16KiB/s to 1TiB/s, as 20MiB/s"),
    ("{append_bytes: 15KiB/s}", "is '15KiB/s'"),
    ("{read_bytes: 2TiB/s}", "read_bytes of the quota of role on is '2TiB/s'"),
    ("{read_bytes: 20MB/s}", "is '20MB/s'"),
    ("{read_bytes: [1MiB/s]}", "read_bytes of the quota of role on: a list; expected one value"),
    ("{connections: 0}", "connections of the quota of role on is '0'; expected a whole number"),
    ("{connections: 5/s}", "is '5/s'"),
]


@pytest.mark.parametrize(("quota", "text"), QUOTA_FAULTS)
def test_a_fault_in_a_quota_is_named_with_its_line(quota: str, text: str) -> None:
    content = GOOD.replace("{verbs: [status]}", f"{{verbs: [status],\n    quota: {quota}}}")
    with pytest.raises(ConfigurationError) as caught:
        parse_policy(content.encode(), "p.yaml")
    assert text in str(caught.value)
    assert str(caught.value).startswith("p.yaml, line 10: ")


def test_a_quota_is_read_and_shown_as_it_is_written() -> None:
    written = "append_bytes: 20MiB/s, appends: 5000/s, read_bytes: 100001B/s, connections: 200"
    content = GOOD.replace("{verbs: [status]}", f"{{verbs: [status], quota: {{{written}}}}}")
    orders, plain = parse_policy(content.encode(), "p.yaml").roles
    assert orders.quota == NO_QUOTA
    assert plain.quota == Quota(20 << 20, 5000, 100_001, 200)
    shown = zip(Quota._fields, plain.quota, strict=True)
    assert ", ".join(f"{name}: {shown_limit(name, limit)}" for name, limit in shown) == written


@pytest.mark.parametrize(("old", "new", "text"), FAULTS)
def test_a_fault_is_named_with_its_line(old: str, new: str, text: str) -> None:
    assert old in GOOD
    content = GOOD.replace(old, new, 1) if old else ""
    with pytest.raises(ConfigurationError) as caught:
        parse_policy(content.encode(), "p.yaml")
    assert text in str(caught.value)
    assert str(caught.value).startswith("p.yaml")


def test_the_verbs_that_are_counted_are_those_of_all_roles_and_all_of_break_glass() -> None:
    text = GOOD.replace("headers: -5..5", "audit: [append]")
    text = text.replace("{verbs: [status]}", "{verbs: [status], audit: [read]}")
    policy = parse_policy(f"{text}break_glass: [CN=root]\n".encode(), "p.yaml")
    assert audited(policy, "CN=a") == audited(policy, "CN=root") == {Verb.APPEND, Verb.READ}
    assert audited(policy, "CN=b") == audited(parse_policy(GOOD.encode(), "p"), "CN=a") == set()


def test_a_policy_in_another_encoding_is_refused_with_the_line() -> None:
    with pytest.raises(ConfigurationError, match=r"line 2: not UTF-8; save the file as UTF-8"):
        parse_policy(b"version: 1\n\xff", "p.yaml")


def test_a_policy_that_is_too_large_is_not_read() -> None:
    with pytest.raises(ConfigurationError, match=str(POLICY_BYTES_MAX)):
        parse_policy(GOOD.encode() + b"#" * POLICY_BYTES_MAX, "p.yaml")


def test_a_policy_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="too many levels"):
        parse_policy(b"[" * 100_000, "p.yaml")


def test_patterns_with_a_star_are_bounded() -> None:
    many = "".join(f"  CN=x{number}*: [on]\n" for number in range(STAR_GRANTS_MAX + 1))
    with pytest.raises(ConfigurationError, match="1001 patterns have a"):
        parse_policy(GOOD.replace("  CN=a: [orders, on]\n", many).encode(), "p.yaml")
