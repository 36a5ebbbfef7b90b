"""Tests the lists for people: requests, workers, queues and failures."""
