"""Servers for tests: one, clusters, Sentinel, containers."""
