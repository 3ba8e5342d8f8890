"""The files of a storage node next to its log: control file, node file, trace, reserve."""
