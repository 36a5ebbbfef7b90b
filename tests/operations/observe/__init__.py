"""Tests the reads of a queue for monitoring."""
