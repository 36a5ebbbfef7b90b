"""Tests that what the guide and the samples show runs."""
