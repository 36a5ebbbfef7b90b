"""Tests checks, walks and repairs."""
