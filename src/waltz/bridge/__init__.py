"""A bridge: posts the transactions of a cluster to a webhook, at least once and in order."""
