"""The replica's log on disk: segments, their indexes, damaged records and their repair."""
