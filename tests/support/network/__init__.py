"""Fake servers, and networks that can be cut."""
