"""Tests control of requests: change, cancel, wait, and dead letters."""
