"""Fake servers, and networks whose links can be cut."""
