"""Tests the output on terminals."""
