"""Checks, walks and repairs."""
