"""Tests the helpers that use the standard library alone."""
