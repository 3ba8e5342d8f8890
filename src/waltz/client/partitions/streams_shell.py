"""Passes what the stream connections of a client carry on to its partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from waltz.client.partitions.client_partition_events import Received, StreamLost, StreamOpened
from waltz.client.partitions.partition_runner_shell import PartitionRunner
from waltz.errors import RemoteProtocolError
from waltz.types import PartitionId
from waltz.wire.denial_protocol import NO_PARTITION
from waltz.wire.message import Audience, Message

HEARD: Final = (Audience.STREAM, Audience.REQUESTER)


class StreamSide:
    """See the module. `runners` are the partitions that are active at the moment."""

    def __init__(self, runners: dict[PartitionId, PartitionRunner]) -> None:
        self._runners = runners
        self._attached: dict[PartitionId, StreamOpened] = {}

    def welcome(self, runner: PartitionRunner) -> None:
        """Tell a partition that has become active about the stream that is there for it."""
        if (attached := self._attached.get(runner.partition_id)) is not None:
            runner.mailbox.put(attached)

    def attach(
        self,
        partition_id: PartitionId,
        connection_sequence: int,
        *,
        knows_batches: bool,
        gives_marks: bool,
    ) -> None:
        opened = StreamOpened(connection_sequence, knows_batches)
        self._attached[partition_id] = opened
        if partition_id in self._runners:
            self._runners[partition_id].mailbox.put(opened)

    def detach(self, partition_id: PartitionId, connection_sequence: int) -> None:
        attached = self._attached.get(partition_id)
        if attached is not None and attached.connection_sequence == connection_sequence:
            del self._attached[partition_id]
        if partition_id in self._runners:
            self._runners[partition_id].mailbox.put(StreamLost(connection_sequence))

    async def receive(self, connection_sequence: int, messages: Sequence[Message]) -> None:
        """Raises RemoteProtocolError: a message that is for no partition of a client."""
        runs: dict[PartitionId, list[Message]] = {}
        for message in messages:
            if message.AUDIENCE not in HEARD:
                raise RemoteProtocolError(f"{type(message).__name__} on a stream connection")
            partition_id = message.partition_id  # type: ignore[attr-defined]
            if partition_id == NO_PARTITION:  # the connection as a whole is denied
                for each, attached in self._attached.items():
                    if attached.connection_sequence == connection_sequence:
                        runs.setdefault(each, []).append(message)
            elif partition_id in runs:
                runs[partition_id].append(message)
            else:
                runs[partition_id] = [message]
        touched = [
            each for key, each in self._runners.items() if key in runs and not each.has_ended
        ]
        for runner in touched:
            runner.mailbox.put(Received(connection_sequence, runs[runner.partition_id]))
        for runner in touched:
            await runner.room()
