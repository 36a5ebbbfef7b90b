"""Helpers that several test folders share: servers, waiting, workers, and checks after each test."""
