"""Tests the output for people."""
