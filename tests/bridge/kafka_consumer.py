"""A consumer of Kafka as somebody would write it: reads what is committed, and keeps it in a file.

python -m tests.bridge.kafka_consumer SERVERS TOPIC FILE

Imports nothing of waltz. Each record is a line of FILE, in the order of arrival:
`partition transaction header history value_base64`. Runs until it is killed.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import cast

from confluent_kafka import Consumer, TopicPartition


def main(servers: str, topic: str, path: str) -> None:
    consumer: Consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 2,
        }
    )
    found = consumer.list_topics(topic, timeout=60).topics[topic].partitions
    consumer.assign([TopicPartition(topic, each, 0) for each in found])
    print(len(found), flush=True)
    with Path(path).open("a") as file:
        while True:
            message = consumer.poll(1.0)
            if message is None or message.error() is not None:
                continue  # a broker that is started again
            headers = dict(message.headers() or [])
            texts = [
                cast(bytes, headers[f"waltz-{name}"]).decode()
                for name in ("partition", "transaction", "header", "history")
            ]
            assert int(texts[0]) == message.partition(), "the log's partition is the topic's"
            value = base64.b64encode(message.value() or b"").decode()
            file.write(" ".join([*texts, value]) + "\n")
            file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
