"""What Spark does in Redis, as operations without I/O: staging, commit, ranges of streams."""
