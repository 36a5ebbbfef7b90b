"""Tests the creation of requests."""
