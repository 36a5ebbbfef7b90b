"""Tests the report."""
