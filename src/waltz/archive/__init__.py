"""The archive: the log as it is on disk, kept in a directory or in a bucket."""
