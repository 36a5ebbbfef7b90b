"""Leases, tokens, shards."""
