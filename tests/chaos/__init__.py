"""Injects faults into real processes, and checks that all that went in comes out once."""
