"""Looking at a storage directory without changing a byte of it, beside a running node or without.

    findings       what can be wrong, and a bounded report of it
    survey         what is there: control file, partitions, segments
    walk           the records of a data file, and the gaps between those that check out
    segments       one segment judged
    verification   a directory, a partition, a segment or one record judged
    promises       the control file judged
    content        statistics and digests of records

Files are opened to read, no lock is taken, nothing is recovered. Source: the original's DiskCli.
"""
