"""Small helpers that need only the standard library."""
