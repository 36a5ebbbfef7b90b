"""The worker's log."""
