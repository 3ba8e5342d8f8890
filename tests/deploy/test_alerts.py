"""Each alert fires in the state that it is about, and none fires while all is well.

Prometheus itself evaluates the rules, over scrapes of a cluster in that state.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.artefacts import FOLDER
from deploy.table import ALERTS, Alert
from tests.deploy.scrapes import CONSUMERS, DISK, GIBIBYTE, WELL, Scene, free, series, store
from tests.promtool import promtool
from tests.shares import one_in
from waltz.audit.audit_metrics import AuditStanding
from waltz.figures import Durations
from waltz.server.appends.stage_seconds import StageSeconds
from waltz.server.clients.consumer_lags import ConsumerLag, ConsumersState
from waltz.server.server_metrics import CoordinatorContact, ServerPartitionCounters, ServerStage
from waltz.spark.followed_metrics import FollowedPartition, LastVerify
from waltz.storage.log.damage import DamagedRange
from waltz.storage.scrubber import ScrubCounters
from waltz.storage.storage_metrics import NodeStage
from waltz.types import PartitionId, TransactionId
from waltz.wire.report_protocol import Standing

RULES = [FOLDER / "prometheus" / name for name in ("alerts.yml", "recording.yml")]
CURRENT, SILENT = Standing.CURRENT, Standing.SILENT


def seconds(*durations: float) -> Durations:
    found = Durations()
    for each in durations:
        found.add(each)
    return found


def lost(reason: Standing) -> Scene:
    return WELL.with_partition(store=store(CURRENT, CURRENT, reason))


def behind(transactions: int, seconds: float, *, is_connected: bool) -> ConsumersState:
    lag = ConsumerLag("billing", PartitionId(0), is_connected, transactions, seconds)
    return replace(CONSUMERS, lags=(lag, *CONSUMERS.lags[1:]))


WELL_AUDITED = WELL.with_server(audit=AuditStanding(9, 0, 0, is_failing=False))

SCENES: dict[str, Scene | tuple[Scene, Scene]] = {
    "WaltzProcessDown": replace(WELL, up=0),
    "WaltzPartitionUnserved": WELL.with_server(partitions=WELL.server.partitions[:1]),
    "WaltzPartitionTakesNoAppends": WELL.with_partition(
        store=store(CURRENT, Standing.REFUSING, Standing.REFUSING)
    ),
    "WaltzPartitionUnknown": WELL.with_partition(store=store(CURRENT, SILENT, SILENT)),
    "WaltzPartitionFails": (WELL, WELL.with_partition(failures=1)),
    "WaltzSessionsDoNotLast": (
        WELL,
        WELL.with_partition(counters=ServerPartitionCounters(store_sessions=1)),
    ),
    "WaltzReplicaMissing": lost(Standing.ABSENT),
    "WaltzReplicaSilent": lost(SILENT),
    "WaltzCoordinatorLost": WELL.with_server(coordinator=CoordinatorContact(41.0, "gone", 40.0)),
    "WaltzServerUnhealthy": WELL.with_server(stage=ServerStage.STOPPING),
    "WaltzAppendsSlow": (
        WELL,
        WELL.with_partition(append_seconds=StageSeconds(store=seconds(4.0, 4.0))),
    ),
    "WaltzClientsNotRead": WELL.with_server(throttled_connections=1),
    "WaltzAuditFails": WELL.with_server(audit=AuditStanding(9, 0, 1, is_failing=True)),
    "WaltzAuditLosesEntries": (WELL_AUDITED, WELL.with_server(audit=AuditStanding(9, 1, 1, False))),
    "WaltzRecordsDamaged": WELL.with_replica(
        damaged_ranges=(DamagedRange(TransactionId(4), TransactionId(5)),)
    ),
    "WaltzReplicaRefuses": WELL.with_replica(damage="the control file is cut"),
    "WaltzStoragePartitionFailed": WELL.with_replica(failure="KeyError(3)"),
    "WaltzWriterClosed": WELL.with_replica(is_writer_open=False),
    "WaltzDiskFull": WELL.with_node(space=free(0)),
    "WaltzDiskLow": WELL.with_node(space=free(GIBIBYTE)),
    "WaltzDiskFillsUp": (WELL, WELL.with_node(space=free(DISK // 2 - 5 * GIBIBYTE))),
    "WaltzDiskHangs": WELL.with_replica(call_seconds=31.0),
    "WaltzDiskSlow": (WELL, WELL.with_replica(drain_seconds=seconds(0.4, 0.4))),
    "WaltzPartitionClosed": WELL.with_replica(is_writable=False),
    "WaltzStorageUnhealthy": WELL.with_node(stage=NodeStage.STARTING),
    "WaltzScrubStopped": (WELL, WELL),
    "WaltzArchiveBehind": WELL.with_archived(high_water_mark=12, lag_seconds=400.0),
    "WaltzArchiveStands": WELL.with_archiver(last_success_milliseconds=-3_000_000),
    "WaltzCopiesDiffer": WELL.with_archived(trouble="they differ", is_different=True),
    "WaltzClientBlocked": WELL.with_followed(blocked_seconds=61.0),
    "WaltzClientParks": (WELL, WELL.with_followed(parked=1)),
    "WaltzClientLags": WELL.with_followed(known_mark=TransactionId(20_000)),
    "WaltzClientWithoutServer": WELL.with_followed(is_mounted=False),
    "WaltzConsumerLags": replace(WELL, consumers=behind(4_000, 301.0, is_connected=True)),
    "WaltzConsumerGone": replace(WELL, consumers=behind(1, 3.0, is_connected=False)),
    "WaltzConsumersLeftOut": replace(WELL, consumers=replace(CONSUMERS, left_out=1)),
    "WaltzPipelineBehind": WELL.with_pipeline(
        partitions=(FollowedPartition(PartitionId(0), 10, 11, 421.0),)
    ),
    "WaltzPipelineDiffers": WELL.with_pipeline(last_verify=LastVerify(1_700_000, 10, 1)),
    "WaltzLocksRefused": (WELL, WELL.with_client(refusals={"account": 3 + 60 * 20})),
}
"""The state in which each alert fires; of two, the cluster goes from one towards the other, so far
with each scrape."""

GOES_WELL = replace(WELL, node=replace(WELL.node, scrub=ScrubCounters(passes=1)))
"""A step on: the scrubber has been round."""

STEP_MINUTES = {"1h": 10, "1d": 180}
"""Between two scrapes, for alerts that wait long; else a minute."""

STEPS = 60


def case(
    alert: Alert, before: Scene, after: Scene, *, fires: bool, steps: int = STEPS
) -> dict[str, Any]:
    """Return a test of promtool: whether the alert fires after `steps` scrapes."""
    minutes = STEP_MINUTES.get(alert.hold, 1)
    count = f'count(ALERTS{{alertname="{alert.name}",alertstate="firing"}}) > bool 0'
    sample = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "interval": f"{minutes}m",
        "input_series": series(before, after, steps),
        "promql_expr_test": [
            {"expr": count, "eval_time": f"{steps * minutes}m", "exp_samples": sample}
        ],
    }


def check(path: Path, alert: Alert, *cases: dict[str, Any]) -> None:
    """Have promtool run the cases over our rules."""
    test = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": f"{STEP_MINUTES.get(alert.hold, 1)}m",
        "tests": cases,
    }
    path.write_text(json.dumps(test))  # JSON is YAML, and written in a tenth of the time
    promtool("test", "rules", path)


def test_promtool_understands_the_rules() -> None:
    said = promtool("check", "rules", *RULES)
    assert f"{len(ALERTS)} rules found" in said


def test_every_alert_has_a_state() -> None:
    assert {alert.name for alert in ALERTS} == SCENES.keys()


@pytest.mark.parametrize("alert", one_in(5, ALERTS), ids=lambda alert: alert.name)
def test_an_alert_fires_in_its_state_and_not_while_all_is_well(
    alert: Alert, tmp_path: Path
) -> None:
    scene = SCENES[alert.name]
    before, after = scene if isinstance(scene, tuple) else (scene, scene)
    check(
        tmp_path / "test.yml",
        alert,
        case(alert, before, after, fires=True),
        case(alert, WELL, GOES_WELL, fires=False),
    )


def test_a_node_of_yesterday_is_not_said_to_have_done_nothing_for_a_week(tmp_path: Path) -> None:
    """Its first pass is under way: 2 TiB take more than a day."""
    (alert,) = [each for each in ALERTS if each.name == "WaltzScrubStopped"]
    two_days = 2 * 24 * 60 // STEP_MINUTES[alert.hold]
    check(tmp_path / "test.yml", alert, case(alert, WELL, WELL, fires=False, steps=two_days))
