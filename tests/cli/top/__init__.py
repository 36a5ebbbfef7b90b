"""Tests `fairlane top` in a terminal."""
