"""Tests the archive."""
