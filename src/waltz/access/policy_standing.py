"""The figures of a process about its policy, the same for servers and storage nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from waltz.access.policy import Verb
from waltz.figures import Family, Kind, Label, Metric, gauge

State = TypeVar("State")

NO_POLICY: Final = "there is no policy in force"


class PolicyStanding(NamedTuple):
    """The policy in force: its version, whether it denies or only observes, and whether its file
    has changed since and cannot be used. Without a version there is none in force, and what the
    coordinator keeps cannot be used. `denials` counts requests by verb and outcome."""

    version: int | None
    denies: bool
    is_faulty: bool
    denials: tuple[tuple[tuple[str, str], int], ...] = ()


def policy_metrics(
    standing: Callable[[State], PolicyStanding | None],
) -> Sequence[Metric[State]]:
    """Return the figures without labels; `standing` is None if a process has no policy."""

    def of(state: State, value: Callable[[PolicyStanding], float | None]) -> float | None:
        found = standing(state)
        return None if found is None else value(found)

    return (
        gauge(
            "policy_version",
            "Version of the policy in force.",
            lambda s: of(s, lambda found: found.version),
            absent=NO_POLICY,
        ),
        gauge(
            "policy_denies",
            "1 if the policy in force denies, 0 if it only observes.",
            lambda s: of(s, lambda found: None if found.version is None else found.denies),
            absent=NO_POLICY,
        ),
        gauge(
            "policy_file_faulty",
            "1 if the policy's file, or the coordinator's node, cannot be used: the policy read"
            " before stays in force, or, if none was there, all are refused but access.breakGlass"
            " where one is demanded, and nobody where none is.",
            lambda s: of(s, lambda found: found.is_faulty),
            absent=f"{NO_POLICY}, and none is kept that cannot be used",
        ),
    )


def denied_requests(standing: Callable[[State], PolicyStanding | None]) -> Family[State]:
    """Return the family that counts what a policy does not allow."""

    def denials(state: State) -> tuple[tuple[tuple[str, str], int], ...]:
        found = standing(state)
        return () if found is None else found.denials

    return Family(
        "requests_denied",
        "Requests that the policy does not allow. denied: the request was refused, or the"
        " connection ended; observed: the request was served, since the policy only observes.",
        Kind.COUNTER,
        (
            Label("verb", ", ".join(each.value for each in Verb)),
            Label("outcome", "denied, observed"),
        ),
        denials,
        absent="there was none of the verb and outcome",
    )
