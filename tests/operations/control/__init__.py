"""Tests what people do with requests."""
