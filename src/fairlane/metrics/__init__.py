"""The metrics for Prometheus: each name, type and help text is defined here once."""
