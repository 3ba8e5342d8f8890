"""`waltz migrate`: from a cluster of the Java original to this program, step by step and back.

    original_files    the original's configuration files: what is served, what is ignored, converted
    key_stores        Java key stores, read and written as PEM
    key_store_checks  what is wrong with the stores that a file names
    directory_checks  a storage directory of the original, looked at without changing it
    cluster_checks    the original's cluster: metadata, peers, partitions without all replicas
    original_names    metrics, tools and answers of the original, and what there is in their place
    steps             the plan: each step, whether it is ready, and the way back

Owns what an operator of the original has to know. Changes nothing of a cluster.
"""
