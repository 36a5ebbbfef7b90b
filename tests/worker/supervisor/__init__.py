"""Tests the supervisor."""
