"""Tests reading with Spark."""
