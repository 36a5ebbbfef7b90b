"""Tests writing with Spark."""
