"""Finds what is wrong with a server, a queue or a request, and repairs it."""
