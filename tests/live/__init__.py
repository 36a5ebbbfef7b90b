"""A queue while someone watches it."""
