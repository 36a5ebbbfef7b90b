"""A queue while someone watches it: one poller, the last minutes, and rates."""
