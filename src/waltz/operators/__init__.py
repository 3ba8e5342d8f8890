"""What operators ask a running cluster and change about it: reports, replicas, more partitions."""
