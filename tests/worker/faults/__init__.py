"""Whole workers, while processes are killed, Redis is away or a release changes."""
