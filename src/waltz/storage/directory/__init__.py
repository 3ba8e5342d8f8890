"""What a storage node keeps beside its log: control file, node file, trace, reserve."""
