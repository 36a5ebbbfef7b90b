"""Tests the commands, as a user runs them."""
