"""Tests what the leader does."""
