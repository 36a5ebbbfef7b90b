"""Tests the worker's log."""
