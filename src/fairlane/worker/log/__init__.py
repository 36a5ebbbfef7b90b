"""The worker's log: failed calls, and a queue so that a slow reader stops nothing."""
