"""Tests encoding, errors and TLS."""
