"""The supervisor."""
