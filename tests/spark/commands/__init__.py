"""Tests `fairlane spark`."""
