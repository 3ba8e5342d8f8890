"""Measuring a cluster: workloads as data, clients as processes, figures in multiples."""
