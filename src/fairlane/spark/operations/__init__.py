"""Spark's operations without I/O: staging, commit, ranges of streams."""
