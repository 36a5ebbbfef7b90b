"""Tests the progress on stderr."""
