"""A bridge: delivers the transactions of a cluster in order, to a webhook or to Kafka topics."""
