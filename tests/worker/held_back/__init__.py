"""Whole workers of a queue or request that has a rate, a time or a pause."""
