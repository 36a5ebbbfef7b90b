"""Tests the scripts of staging."""
