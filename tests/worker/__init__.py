"""Tests the worker, from its parts to processes that are killed at work."""
