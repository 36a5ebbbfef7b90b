"""Staging, commit and ranges."""
