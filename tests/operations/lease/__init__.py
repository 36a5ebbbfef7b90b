"""Tests leases, tokens, shards and statistics."""
