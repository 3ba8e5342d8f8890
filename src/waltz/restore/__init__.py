"""Making a cluster, or a storage directory, from an archive of the log."""
