"""Tests the embedded server."""
