"""Writes results to stdout or to a file."""
