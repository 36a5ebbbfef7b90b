"""Tests fleets."""
