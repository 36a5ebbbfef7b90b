"""Whole workers on a real Redis."""
