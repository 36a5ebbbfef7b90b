"""Tests the operations on schedules."""
