"""The samples run."""
