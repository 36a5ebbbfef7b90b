"""Tests tasks."""
