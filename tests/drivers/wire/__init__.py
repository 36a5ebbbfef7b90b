"""Encoding, errors, TLS."""
