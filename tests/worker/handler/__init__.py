"""Tests handlers and their outcomes."""
