"""Tests whole workers on a real Redis."""
