"""What a queue looks like now: one bounded read for dashboards, terminals and metrics."""
