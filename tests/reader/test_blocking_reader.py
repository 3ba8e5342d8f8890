"""The reader for threads, beside a server on another thread."""

from __future__ import annotations

import pytest

from tests.client.fake_cluster import hosts_for, server_thread
from tests.client.test_blocking_client import threads_of_clients, wait_until
from waltz.errors import ClientClosedError, LocalProtocolError, NotFoundError
from waltz.reader.blocking_reader import LogReader
from waltz.types import PartitionId


def test_a_reader_yields_ranges_and_follows() -> None:
    with server_thread(2) as server:
        for number in range(50):
            server.partitions[1].add(b"%d" % number)
        before = threads_of_clients()
        with LogReader(hosts_for(server)) as reader:
            assert reader.partition_count == 2
            assert reader.cluster_key.int == 7
            assert reader.high_water_mark(PartitionId(1)) == 49
            assert reader.high_water_marks([0, 1]) == {0: -1, 1: 49}
            assert reader.high_water_marks([]) == {}
            with pytest.raises(NotFoundError):
                reader.high_water_marks([1, 2])
            found = [data for columns in reader.read(1, 10, 50) for data in columns.data]
            assert found == [b"%d" % number for number in range(10, 50)]
            following = reader.follow(1, 48)
            assert next(following).data == [b"48", b"49"]
            following.close()
            with pytest.raises(LocalProtocolError):
                next(reader.read(1, 3, 1))
            left_open = reader.follow(1, 0)
            next(left_open)
        reader.close()
        with pytest.raises(ClientClosedError):
            next(left_open)
        wait_until(lambda: threads_of_clients() <= before)
