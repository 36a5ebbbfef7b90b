"""Reads what Redis holds of a queue as columns of Arrow, for Spark and for an archive."""
