"""Questions and changes of operators to a running cluster: reports, replicas, more partitions."""
