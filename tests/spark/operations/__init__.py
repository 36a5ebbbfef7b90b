"""Tests staging, commit and ranges."""
