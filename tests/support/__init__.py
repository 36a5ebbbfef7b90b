"""Helpers that several test folders share: servers, waiting, workers, checks after each test."""
