"""A worker's calls: tokens, leases, shards, statistics."""
