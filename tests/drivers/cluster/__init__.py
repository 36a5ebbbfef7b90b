"""Drivers and the nodes of a cluster."""
