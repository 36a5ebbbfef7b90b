"""The scripts of staging."""
