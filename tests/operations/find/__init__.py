"""Tests the lists of requests, workers, queues and failures."""
