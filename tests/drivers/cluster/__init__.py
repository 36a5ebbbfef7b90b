"""Tests the drivers on the nodes of a cluster."""
