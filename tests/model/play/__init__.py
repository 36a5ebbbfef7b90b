"""Plays each step on Redis and on the plain objects, and compares the two."""
