"""Faults against real processes, and a checker: what goes in must come out, once."""
