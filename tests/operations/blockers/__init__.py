"""Tests the diagnosis of what holds up a request."""
