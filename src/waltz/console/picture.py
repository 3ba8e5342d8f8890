"""The cluster as pages and terminal show it, made from the answers of its processes.

Owns the judgement: what is well, what is impaired, what is down, and what nobody can say now.
Nothing here is taken for good without a fresh answer of the process that knows it: servers speak
for their partitions and the replicas' part in them, storage nodes for themselves, the coordinator
for the layout alone. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from waltz.cli.cluster_list import ClusterMetadata
from waltz.cli.replica_standing import UNASKED, ReplicaView, view_replicas
from waltz.cli.storage_questions import StorageReport
from waltz.console.answers import ClusterAnswers, NodeTold, ServerTold, Told
from waltz.console.figure_text import age_text
from waltz.console.node_figures import ReplicaFigures
from waltz.console.plain_text import plain
from waltz.console.waiting import Cause, no_server, takes_none, takes_some, unknown, well
from waltz.types import Address, PartitionId, ReplicaId, ServerId
from waltz.wire.report_protocol import PartitionReport

REASON_CHARACTERS_MAX: Final = 500
"""Characters of a server's reason, and of what it says of a replica."""

RETURNS_SECONDS: Final = 600.0
"""Seconds for which it is said that a storage node was away."""

NOTICES_MAX: Final = 12
"""Sentences in the list of what needs attention; the others are counted."""

DIGITS: Final = frozenset("0123456789")
DIGITS_AND_DOT: Final = DIGITS | {"."}


class Health(StrEnum):
    """The state of anything that is shown, the best one first."""

    WELL = "well"
    IMPAIRED = "impaired"
    UNKNOWN = "unknown"
    DOWN = "down"


SEVERITY: Final = {Health.DOWN: 3, Health.UNKNOWN: 2, Health.IMPAIRED: 1, Health.WELL: 0}


@dataclass(frozen=True, slots=True)
class ReplicaPicture:
    """A replica of a partition. `standing` and `text` are the words of the partition's server, with
    the age of the replica's last answer to it; `durable_id` and `damaged_records` are the node's
    own, None where the node has not just told them."""

    node: str
    replica_id: str
    standing: str
    text: str
    takes_appends: bool | None
    answer_age_seconds: float | None
    durable_id: int | None = None
    damaged_records: int | None = None

    @property
    def health(self) -> Health:
        if self.standing == UNASKED:
            return Health.UNKNOWN
        if self.standing in ("silent", "absent"):
            return Health.DOWN
        return Health.WELL if self.standing == "current" else Health.IMPAIRED


@dataclass(frozen=True, slots=True)
class PartitionPicture:
    """A partition. `session_id`, `mark` and `rate` are None where they are not known now; `age` is
    that of the server's answer."""

    partition_id: PartitionId
    health: Health
    writable: bool | None
    cause: Cause
    server: str | None
    server_address: str | None
    generation: int | None
    session_id: int | None
    mark: int | None
    rate: float | None
    age_seconds: float | None
    reason: str | None
    replicas: tuple[ReplicaPicture, ...]

    @property
    def sentence(self) -> str:
        return self.cause.sentence((self.partition_id,))

    @property
    def word(self) -> str:
        """Return the state in one or two words."""
        return {True: "takes appends", False: "takes none", None: "unknown"}[self.writable]

    @property
    def current_replicas(self) -> int | None:
        """Return how many replicas hold every commit and take appends; None: not known."""
        if self.replicas and all(each.standing == UNASKED for each in self.replicas):
            return None
        return sum(each.standing == "current" for each in self.replicas)


@dataclass(frozen=True, slots=True)
class ServerPicture:
    name: str
    address: str
    server_id: int
    health: Health
    text: str
    partitions: int
    coordinator_age_seconds: float | None
    age_seconds: float | None


@dataclass(frozen=True, slots=True)
class NodePicture:
    """A storage node. Figures are None where the node has not just told them."""

    name: str
    replica_id: str
    health: Health
    text: str
    problems: tuple[str, ...]
    group: int | None
    partitions: int
    age_seconds: float | None
    free_bytes: int | None = None
    total_bytes: int | None = None
    minimum_bytes: int | None = None
    drain_seconds: float | None = None
    damaged_records: int | None = None
    scrubbed_bytes: int | None = None
    scrub_passes: int | None = None
    last_pass_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence on something that is not well, and the path of the page that says more."""

    health: Health
    text: str
    path: str


@dataclass(frozen=True, slots=True)
class ClusterPicture:
    name: str
    cluster_key: str
    health: Health
    headline: str
    coordinator: Notice
    coordinator_age_seconds: float | None
    servers: tuple[ServerPicture, ...] = ()
    nodes: tuple[NodePicture, ...] = ()
    partitions: tuple[PartitionPicture, ...] = ()
    notices: tuple[Notice, ...] = ()
    more_notices: int = 0
    rate: float | None = None
    """Commits per second of all partitions; None if that of any is unknown."""
    names: Mapping[str, str] = field(default_factory=dict)

    def partition(self, number: int) -> PartitionPicture | None:
        return self.partitions[number] if 0 <= number < len(self.partitions) else None

    def node(self, name: str) -> NodePicture | None:
        """Return the storage node of this name or address."""
        return next((each for each in self.nodes if name in (each.name, each.replica_id)), None)


def picture_of(answers: ClusterAnswers) -> ClusterPicture:
    """Return the cluster as the answers show it at their time."""
    now, told = answers.now, answers.coordinator
    coordinator = _coordinator(told, now)
    metadata = told.answer
    if metadata is None:
        headline = f"Nothing is known of this cluster: {coordinator.text}"
        return ClusterPicture("", "", Health.UNKNOWN, headline, coordinator, None)
    servers = tuple(
        _server(answers, metadata, server_id)
        for server_id in sorted(metadata.membership.descriptors)
    )
    nodes = tuple(_node(answers, metadata, node) for node in metadata.replicas())
    seen = {node: _seen(answers, node) for node in metadata.replicas()}
    holding: dict[PartitionId, list[ReplicaId]] = {}
    for node in metadata.replicas():
        for number in metadata.placement.partitions[node]:
            holding.setdefault(number, []).append(node)
    owners = {
        number: server_id
        for server_id, held in metadata.membership.assignment.servers.items()
        for number in held
    }
    partitions = tuple(
        _partition(answers, metadata, seen, number, owners.get(number), holding.get(number, []))
        for number in map(PartitionId, range(metadata.partition_count))
    )
    notices = _notices(coordinator, servers, nodes, partitions)
    notices += _returns(answers, nodes)
    rates = [each.rate for each in partitions]
    return ClusterPicture(
        plain(metadata.name, 80),
        str(metadata.cluster_key),
        _worst([*(each.health for each in notices), Health.WELL]),
        _headline(notices, partitions, servers, nodes),
        coordinator,
        told.age(now),
        servers,
        nodes,
        partitions,
        tuple(notices[:NOTICES_MAX]),
        max(0, len(notices) - NOTICES_MAX),
        None if None in rates else sum(each for each in rates if each is not None),
        answers.names,
    )


def _worst(healths: Sequence[Health]) -> Health:
    return max(healths, key=SEVERITY.__getitem__)


def _coordinator(told: Told[ClusterMetadata], now: float) -> Notice:
    why = told.why_unknown(now)
    if why is None:
        return Notice(Health.WELL, "The coordinator answers.", "/")
    if told.answer is None:
        text = "the coordinator has not answered yet."
        if told.trouble is not None:
            text = f"the coordinator does not answer ({plain(why)})."
        return Notice(Health.UNKNOWN, text, "/")
    age = told.age(now) or 0.0
    text = (
        f"The coordinator does not answer ({plain(why)}): the layout shown here is {age:.0f} s old,"
        " and partitions that are open go on, but none is opened or moved."
    )
    return Notice(Health.UNKNOWN, text, "/")


def _name(answers: ClusterAnswers, address: object) -> str:
    return plain(answers.names.get(str(address), str(address)), 80)


def _worded(answers: ClusterAnswers, text: str) -> str:
    """Return the text of a server with the names of addresses in their place."""
    shown = plain(text, REASON_CHARACTERS_MAX)
    for address in sorted(answers.names, key=len, reverse=True):
        shown = _replaced(shown, address, _name(answers, address))
    return shown


def _replaced(text: str, address: str, name: str) -> str:
    """Replace an address in `text`, but not where it is the middle of a longer one."""
    first, *rest = text.split(address)
    replaced = first
    for piece in rest:
        is_whole = replaced[-1:] not in DIGITS_AND_DOT and piece[:1] not in DIGITS
        replaced += (name if is_whole else address) + piece
    return replaced


def _server(
    answers: ClusterAnswers, metadata: ClusterMetadata, server_id: ServerId
) -> ServerPicture:
    address = metadata.membership.descriptors[server_id].address
    told: Told[ServerTold] = answers.servers.get(address, Told())
    why = told.why_unknown(answers.now)
    found = told.answer
    coordinator_age: float | None = None
    if why is not None:
        is_asked = told.trouble is not None or told.asked_at is not None
        health = Health.DOWN if is_asked else Health.UNKNOWN
        text = f"does not answer: {plain(why)}" if is_asked else "has not answered yet"
    elif found is not None and found.reports is not None:
        coordinator_age = found.reports.coordinator_seconds
        problem = found.reports.coordinator_problem
        health = Health.WELL if problem is None else Health.IMPAIRED
        text = "answers" if problem is None else plain(problem)
    else:
        health = Health.UNKNOWN
        silence = "" if found is None else plain(found.silence)
        text = f"answers, and cannot say how its partitions are: {silence}"
    return ServerPicture(
        _name(answers, address),
        str(address),
        server_id,
        health,
        text,
        len(metadata.membership.assignment.servers.get(server_id, {})),
        coordinator_age,
        told.age(answers.now),
    )


def _node(answers: ClusterAnswers, metadata: ClusterMetadata, node: ReplicaId) -> NodePicture:
    told: Told[NodeTold] = answers.nodes.get(node, Told())
    held = metadata.placement.partitions[node]
    name, group = _name(answers, node), metadata.placement.groups.get(node)
    age = told.age(answers.now)
    why = told.why_unknown(answers.now)
    if why is not None or told.answer is None:
        text = plain(why or "")
        return NodePicture(name, node, Health.UNKNOWN, text, (), group, len(held), age)
    report, figures = told.answer.report, told.answer.figures
    missing = {*held} - report.usable.keys() if report.admin_trouble is None else set()
    problems = [plain(each) for each in _told(report)]
    if missing:
        problems.append(
            f"{len(missing)} of its {len(held)} partitions are not on it: it has not taken them"
        )
    closed = [
        number
        for number in held
        if report.usable.get(number) is False and not report.partition_problems.get(number)
    ]
    if closed:
        problems.append(f"{len(closed)} partitions are not served in full")
    if report.trouble is not None:
        health = Health.DOWN
    elif report.admin_trouble is not None:
        health = Health.UNKNOWN
    else:
        health = Health.IMPAIRED if problems else Health.WELL
    picture = NodePicture(
        name,
        node,
        health,
        problems[0] if problems else "serves its partitions",
        tuple(problems),
        group,
        len(held),
        age,
    )
    if figures is None:
        return picture
    return NodePicture(
        *(picture.name, picture.replica_id, picture.health, picture.text, picture.problems),
        *(picture.group, picture.partitions, picture.age_seconds),
        figures.free_bytes,
        figures.total_bytes,
        figures.minimum_bytes,
        told.answer.drain_seconds,
        figures.damaged_records,
        figures.scrubbed_bytes,
        figures.scrub_passes,
        figures.last_pass_seconds,
    )


def _told(report: StorageReport) -> tuple[str, ...]:
    """Return what is wrong with a node; if neither of its ports answers, the reason of one."""
    if report.trouble is not None and report.admin_trouble is not None:
        return (f"does not answer: {report.trouble}",)
    return report.told()


def _partition(
    answers: ClusterAnswers,
    metadata: ClusterMetadata,
    seen: Mapping[ReplicaId, _SeenNode],
    number: PartitionId,
    owner: ServerId | None,
    holding: Sequence[ReplicaId],
) -> PartitionPicture:
    descriptor = None if owner is None else metadata.membership.descriptors.get(owner)
    address = None if descriptor is None else descriptor.address
    told: Told[ServerTold] = Told() if address is None else answers.servers.get(address, Told())
    found = told.known(answers.now)
    report = None
    if found is not None and found.reports is not None:
        report = found.reports.reports.get(number)
    views = view_replicas(holding, report)
    health, cause = _judged(answers, metadata, seen, number, address, told, report, views)
    is_taken = owner is not None and descriptor is not None
    takes_appends = {1: True, 0: False}.get(-1 if report is None else report.writable)
    return PartitionPicture(
        number,
        health,
        False if health is Health.DOWN else takes_appends,
        cause,
        _name(answers, address) if is_taken else None,
        str(address) if is_taken else None,
        report.generation if report is not None else None,
        report.session_id if report is not None and report.session_id >= 0 else None,
        None if report is None else report.high_water_mark,
        None if report is None else answers.rates.get(number),
        told.age(answers.now),
        None if report is None or report.reason is None else _worded(answers, report.reason),
        tuple(_replica(seen[ReplicaId(view.replica_id)], number, view) for view in views),
    )


def _judged(
    answers: ClusterAnswers,
    metadata: ClusterMetadata,
    seen: Mapping[ReplicaId, _SeenNode],
    number: PartitionId,
    address: Address | None,
    told: Told[ServerTold],
    report: PartitionReport | None,
    views: Sequence[ReplicaView],
) -> tuple[Health, Cause]:
    """Return the partition's state, and why it is so."""
    if address is None:
        if (why := answers.coordinator.why_unknown(answers.now)) is not None:
            text = f"no server was known to have it, and the coordinator does not answer: {why}"
            return Health.UNKNOWN, unknown(plain(text))
        runs_any = bool(metadata.membership.descriptors)
        return Health.DOWN, no_server(runs_any=runs_any)
    server = _name(answers, address)
    found = told.known(answers.now)
    if found is None:
        why = plain(told.why_unknown(answers.now))
        return Health.UNKNOWN, unknown(f"{server} does not answer: {why}")
    if found.reports is None:
        if found.health.get(number) is False:
            return Health.DOWN, takes_none((), "its server has no store session for it", 0, ())
        return Health.UNKNOWN, unknown(f"{server} cannot say: {plain(found.silence)}")
    if report is None:
        return Health.UNKNOWN, unknown(f"{server} does not report on it: it may have just moved")
    if report.writable == 1 and views and all(view.is_current for view in views):
        return Health.WELL, well()
    named = [(seen[ReplicaId(view.replica_id)].name, view) for view in views]
    away = {view.replica_id for view in views if seen[ReplicaId(view.replica_id)].is_away}
    if report.writable == 1:
        is_unsure = all(view.is_current or not view.is_fault for view in views)
        health = Health.UNKNOWN if is_unsure else Health.IMPAIRED
        return health, takes_some(named, away)
    reason = _worded(answers, report.reason or "its server gives no reason")
    if report.writable == 0:
        has_session = bool(report.replicas)
        return Health.DOWN, takes_none(named if has_session else (), reason, len(views), away)
    return Health.UNKNOWN, unknown(reason)


@dataclass(frozen=True, slots=True)
class _SeenNode:
    """A storage node as it is named and has just answered, for its replicas of all partitions.
    `is_away`: it has just failed to answer this process."""

    name: str
    is_away: bool
    partitions: Mapping[PartitionId, ReplicaFigures]


def _seen(answers: ClusterAnswers, node: ReplicaId) -> _SeenNode:
    told = answers.nodes.get(node)
    found = None if told is None else told.known(answers.now)
    return _SeenNode(
        _name(answers, node),
        found is not None and found.report.trouble is not None,
        {} if found is None or found.figures is None else found.figures.partitions,
    )


def _replica(node: _SeenNode, number: PartitionId, view: ReplicaView) -> ReplicaPicture:
    own = node.partitions.get(number)
    return ReplicaPicture(
        node.name,
        view.replica_id,
        view.standing,
        plain(view.text, REASON_CHARACTERS_MAX),
        view.takes_appends,
        view.answer_age_seconds,
        None if own is None else own.durable_id,
        None if own is None else own.damaged_records,
    )


def _notices(
    coordinator: Notice,
    servers: Sequence[ServerPicture],
    nodes: Sequence[NodePicture],
    partitions: Sequence[PartitionPicture],
) -> list[Notice]:
    """Return a sentence per thing that is not well, the worst first; partitions with one cause
    share a sentence."""
    found = [] if coordinator.health is Health.WELL else [coordinator]
    for server in servers:
        if server.health is not Health.WELL:
            text = _said(f"Server {server.name}", server.text)
            found.append(Notice(server.health, text, "/#servers"))
    for node in nodes:
        path = f"/node/{node.replica_id}"
        if node.health is Health.WELL:
            continue
        subject = f"Storage node {node.name}"
        for problem in node.problems or (node.text,):
            found.append(Notice(node.health, _said(subject, problem), path))
    causes: dict[tuple[Health, Cause], list[PartitionId]] = {}
    for partition in partitions:
        if partition.health is not Health.WELL:
            key = (partition.health, partition.cause)
            causes.setdefault(key, []).append(partition.partition_id)
    for (health, cause), numbers in causes.items():
        found.append(Notice(health, cause.sentence(numbers), f"/partition/{numbers[0]}"))
    is_partition = {each.path for each in found if each.path.startswith("/partition/")}
    return sorted(found, key=lambda each: (-SEVERITY[each.health], each.path not in is_partition))


def _returns(answers: ClusterAnswers, nodes: Sequence[NodePicture]) -> list[Notice]:
    """Return a sentence for each storage node that is well again after it was seen to be away: a
    node that was started again at once is otherwise as if nothing had been."""
    found = []
    for node in nodes:
        at = answers.away_at.get(ReplicaId(node.replica_id))
        if at is None or node.health is not Health.WELL:
            continue
        age = answers.now - at
        if age < RETURNS_SECONDS:
            text = f"Storage node {node.name} is back: it did not answer {age_text(age)}."
            found.append(Notice(Health.WELL, text, f"/node/{node.replica_id}"))
    return found


def _said(subject: str, text: str) -> str:
    """Return the sentence: `text` begins with a verb, or is a statement of its own."""
    is_verb = text.startswith(("does ", "has ", "cannot ", "answers", "may "))
    return f"{subject}{'' if is_verb else ':'} {text}{'' if text.endswith('.') else '.'}"


def _headline(
    notices: Sequence[Notice],
    partitions: Sequence[PartitionPicture],
    servers: Sequence[ServerPicture],
    nodes: Sequence[NodePicture],
) -> str:
    """Return the state of the cluster in one sentence."""
    notices = [each for each in notices if each.health is not Health.WELL]
    count = len(partitions)
    down, unsure, impaired = (
        sum(each.health is health for each in partitions)
        for health in (Health.DOWN, Health.UNKNOWN, Health.IMPAIRED)
    )
    parts = []
    if down:
        parts.append(f"{_share(down, count, 'partition')} no appends")
    if unsure and unsure == count:
        parts.append("no partition is known to take appends")
    elif unsure:
        parts.append(f"it is not known whether {_share(unsure, count, 'partition')} appends")
    if impaired and impaired == count:
        parts.append(f"{_share(count, count, 'partition')} appends, with fewer replicas")
    elif impaired:
        parts.append(
            f"{impaired} take{'s' if impaired == 1 else ''} appends with fewer replicas"
            if parts
            else f"all {count} partitions take appends, {impaired} with fewer replicas"
        )
    if not parts:
        replicas = "all its replicas" if count == 1 else "all their replicas"
        parts.append(f"{_share(count, count, 'partition')} appends on {replicas}")
    for rows, noun in ((servers, "server"), (nodes, "storage node")):
        gone = sum(each.health is Health.DOWN for each in rows)
        if gone:
            verb = "is" if gone == 1 else "are"
            some = f"{gone} of {len(rows)} {noun}s" if len(rows) > 1 else f"the {noun}"
            parts.append(f"{some} {verb} away")
    if notices and len(parts) == 1 and not (down or unsure or impaired):
        parts.append("something else needs attention")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _share(some: int, count: int, noun: str) -> str:
    """Return `2 of 4 partitions take`, with the verb."""
    if some == count:
        return f"the {noun} takes" if count == 1 else f"all {count} {noun}s take"
    return f"{some} of {count} {noun}s take{'s' if some == 1 else ''}"
