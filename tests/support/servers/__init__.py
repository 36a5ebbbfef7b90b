"""Starts the servers of the tests: single servers, clusters, Sentinels and containers."""
