"""Tests results as files."""
