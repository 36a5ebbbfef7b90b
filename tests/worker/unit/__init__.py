"""Tests the units of a worker, step by step."""
