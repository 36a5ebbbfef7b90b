"""Tests of the operations on schedules."""
