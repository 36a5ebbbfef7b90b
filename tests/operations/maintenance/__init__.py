"""Tests the maintenance of a queue."""
