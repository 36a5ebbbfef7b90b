"""Finds what holds up a request: its causes, its place in the lanes, and when it may start."""
