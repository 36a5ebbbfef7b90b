"""Tests child processes."""
