"""The replica's log on disk: segments, their indexes, what is damaged and how it is mended."""
