"""Inspects a storage directory without changing a byte of it; its node may be running.

    findings          the kinds of faults, and a bounded report of them
    survey            the files: control file, partitions, segments
    walk              the records of a data file, and the gaps between those that check out
    judged_segments   one segment judged
    verification      a directory, a partition, a segment or one record judged
    promises          the control file and the node file judged
    content           statistics and digests of records
    sealed            the records of segments that nothing is appended to any more

Files are opened to read, no lock is taken, nothing is recovered. Source: the original's DiskCli.
"""
