"""Results on stdout or in a file, and how long their reader waits."""
