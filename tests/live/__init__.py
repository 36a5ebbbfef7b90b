"""Tests the live view of a queue."""
