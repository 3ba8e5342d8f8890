"""Options of a read: what they mean, and that a wrong one is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz.errors import ConfigurationError
from waltz.spark.offsets import Offsets
from waltz.spark.spark_options import ReadOptions, SinkOptions, parse_options, parse_sink_options
from waltz.types import PartitionId, TlsSettings, TransactionId

CLUSTER = {"cluster": "127.0.0.1:7100"}


def test_everything_but_the_cluster_has_a_default() -> None:
    assert parse_options(CLUSTER) == ReadOptions(
        cluster="127.0.0.1:7100",
        archive=None,
        path=None,
        partitions=None,
        starting=Offsets("earliest", {}),
        ending=Offsets("latest", {}),
        fail_on_data_loss=True,
        task_count_min=1,
        batch_rows_max=10_000,
        trigger_rows_max=None,
    )


def test_a_stream_starts_at_the_end_unless_told() -> None:
    assert parse_options(CLUSTER, is_stream=True).starting == Offsets("latest", {})
    told = {**CLUSTER, "startingOffsets": '{"1": 5}', "maxTransactionsPerTrigger": "100"}
    options = parse_options(told, is_stream=True)
    assert options.starting == Offsets("earliest", {PartitionId(1): TransactionId(5)})
    assert options.trigger_rows_max == 100


def test_an_option_of_the_other_kind_of_read_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 option maxTrans.* spark.readStream"):
        parse_options({**CLUSTER, "maxTransactionsPerTrigger": "1"})
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 option path is for spark.read "):
        parse_options({"path": "/s1"}, is_stream=True)
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 option maxTasks.* spark.readStream"):
        parse_options({**CLUSTER, "maxTasksPerTrigger": "1"})


def test_a_stream_may_take_the_past_from_an_archive_but_needs_a_cluster() -> None:
    given = {**CLUSTER, "archive": "/archive", "endingOffsets": "latest"}
    options = parse_options(given, is_stream=True)
    assert (options.archive, options.has_end) == (Path("/archive"), True)
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1002 .* an archive alone does not grow"):
        parse_options({"archive": "/archive"}, is_stream=True)


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("30s", 30.0), ("5m", 300.0), (" 2h ", 7200.0)]
)
def test_a_delay_is_a_number_of_some_unit(text: str, seconds: float) -> None:
    given = {**CLUSTER, "minTransactionsPerTrigger": "9", "maxTriggerDelay": text}
    options = parse_options(given, is_stream=True)
    assert (options.trigger_rows_min, options.trigger_delay) == (9, seconds)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"minTransactionsPerTrigger": "9", "maxTriggerDelay": "9"}, "maxTriggerDelay is '9'"),
        ({"minTransactionsPerTrigger": "9", "maxTriggerDelay": "-9s"}, "maxTriggerDelay is '-9s'"),
        ({"maxTriggerDelay": "9s"}, "maxTriggerDelay needs option minTransactionsPerTrigger"),
        (
            {"minTransactionsPerTrigger": "9", "maxTransactionsPerTrigger": "8"},
            "minTransactionsPerTrigger is 9; expected at most the 8 of",
        ),
        (
            {"minPartitions": "9", "maxTasksPerTrigger": "8"},
            "minPartitions is 9; expected at most the 8 of option maxTasksPerTrigger",
        ),
    ],
)
def test_bounds_of_micro_batches_must_fit_each_other(given: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^WALTZ-1003 option {fault}"):
        parse_options({**CLUSTER, **given}, is_stream=True)


def test_data_loss_fails_unless_it_may_not() -> None:
    """PS-08."""
    assert not parse_options({**CLUSTER, "failOnDataLoss": "False"}).fail_on_data_loss
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 option failOnDataLoss is 'no'"):
        parse_options({**CLUSTER, "failOnDataLoss": "no"})


def test_options_are_found_whatever_their_case() -> None:
    given = {
        "CLUSTER": "[::1]:7100",
        "partitions": "1",
        "startingoffsets": "latest",
        "endingOffsets": '{"1": 5}',
        "MINPARTITIONS": "8",
        "rowsperbatch": "500",
    }
    options = parse_options(given)
    assert options.cluster == "[::1]:7100"
    assert options.partitions == (1,)
    assert options.starting.of(options.partitions[0]) == "latest"
    assert options.ending.of(options.partitions[0]) == 5
    assert (options.task_count_min, options.batch_rows_max) == (8, 500)


def test_an_unknown_option_is_named_with_those_that_exist() -> None:
    fault = r"^WALTZ-1001 unknown option 'startOffsets'; did you mean startingOffsets\? known are"
    with pytest.raises(ConfigurationError, match=fault):
        parse_options({**CLUSTER, "startOffsets": "latest"})
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1001 unknown option 'x'; known are"):
        parse_options({**CLUSTER, "x": "1"})
    with pytest.raises(ConfigurationError, match=r"'write_id'; did you mean writeId\? known are"):
        parse_sink_options({**CLUSTER, "write_id": "a"}, is_stream=False)


def test_a_sink_needs_the_coordinator_and_little_else() -> None:
    """PS-07."""
    given = {**CLUSTER, "checkpointlocation": "/elsewhere"}
    assert parse_sink_options(given, is_stream=True) == SinkOptions(
        "127.0.0.1:7100", checkpoint="/elsewhere"
    )
    given = {**CLUSTER, "WRITEID": "a", "batchId": "0"}
    assert parse_sink_options(given, is_stream=False) == SinkOptions("127.0.0.1:7100", "a", 0)


@pytest.mark.parametrize(
    ("options", "is_stream", "fault"),
    [
        ({}, True, "WALTZ-1002 option cluster is missing"),
        ({"cluster": "waltz://a"}, True, "WALTZ-1003 option cluster: "),
        ({**CLUSTER, "writeId": "a"}, True, "WALTZ-1003 option writeId is for df.write only"),
        ({**CLUSTER, "batchId": "1"}, False, "WALTZ-1003 option batchId needs writeId"),
        ({**CLUSTER, "writeId": "a", "batchId": "-1"}, False, "WALTZ-1003 option batchId is '-1'"),
        (
            {**CLUSTER, "clusterKey": "a"},
            True,
            "WALTZ-1003 option clusterKey is 'a'; expected a clu",
        ),
        ({**CLUSTER, "writeId": "a" * 201}, False, "WALTZ-1003 option writeId has 201 characters"),
    ],
)
def test_wrong_options_of_a_sink_are_refused_by_name(
    options: dict[str, str], is_stream: bool, fault: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{fault}"):
        parse_sink_options(options, is_stream=is_stream)


def test_a_storage_directory_is_read_by_itself() -> None:
    assert parse_options({"path": "/disk/waltz"}).path == Path("/disk/waltz")
    for other in (CLUSTER, {"archive": "/archive"}):
        with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 option path reads a"):
            parse_options({"path": "/disk/waltz", **other})


def test_a_cluster_in_a_zookeeper_has_its_address() -> None:
    address = "zookeeper://a:2181,b:2181/prod/waltz"
    assert parse_options({"cluster": address}).cluster == address


def test_a_cluster_may_be_named_by_its_servers() -> None:
    """LC-10."""
    address = "waltz://a:6000,b:6000"
    assert parse_options({"cluster": address}).cluster == address


def test_a_read_without_a_cluster_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1002 option cluster is missing"):
        parse_options({})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("cluster", "localhost"),
        ("cluster", "waltz://localhost"),
        ("minPartitions", "0"),
        ("minPartitions", "many"),
        ("rowsPerBatch", "-1"),
        ("rowsPerBatch", "1000001"),
    ],
)
def test_a_value_out_of_form_is_refused_by_the_name_of_its_option(option: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^WALTZ-1003 option {option}"):
        parse_options({**CLUSTER, option: value})


def test_files_for_tls_are_named_together() -> None:
    """TS-01, TS-02."""
    files = {"tlsCa": "ca.pem", "tlsCert": "me.pem", "TLSKEY": "me.key"}
    assert parse_options({**CLUSTER, **files}).tls == TlsSettings(
        "me.pem", "me.key", authorities="ca.pem"
    )
    token = {"tlsCa": "ca.pem", "tokenFile": "token"}
    assert parse_options({**CLUSTER, **token}).tls == TlsSettings(
        authorities="ca.pem", token_file="token"
    )
    with pytest.raises(ConfigurationError, match="WALTZ-1003 option tokenFile needs tlsCa"):
        parse_options({**CLUSTER, "tokenFile": "token"})
    for half in ({"tlsCert": "me.pem"}, {"tlsCa": "ca.pem", "tlsKey": "me.key"}):
        with pytest.raises(ConfigurationError, match="WALTZ-1003 option tlsCert needs tlsCa"):
            parse_options({**CLUSTER, **half})
