"""Tests flows through the API."""
