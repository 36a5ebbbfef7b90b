"""Decides where steps go, without I/O: slots, nodes, and a batch that goes to several nodes."""
