"""Flows: requests that are steps, each fed with the results of the one before it."""
