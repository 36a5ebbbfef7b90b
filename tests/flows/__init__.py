"""Flows through the API."""
