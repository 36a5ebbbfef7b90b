"""Keeps a queue whole: the registry of workers, the auditor, lost tokens, dead workers."""
