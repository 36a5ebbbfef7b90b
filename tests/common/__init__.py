"""Helpers of the standard library alone."""
