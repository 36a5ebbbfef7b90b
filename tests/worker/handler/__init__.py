"""Handlers and their outcomes."""
