"""Artefacts for operators: rules of Prometheus and dashboards of Grafana, made from one table."""
